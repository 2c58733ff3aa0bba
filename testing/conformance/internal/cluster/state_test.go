package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/evidence"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

func TestTablesThatContradictThemselves(t *testing.T) {
	for _, services := range [][]Service{
		{{Name: "a", Slot: 1}, {Name: "b", Slot: 1}},
		{{Name: "a", Slot: 1}, {Name: "a", Slot: 2}},
	} {
		_, err := Objects(services, DualStack())
		assert.Error(t, err)
	}
}

// A program that lacks a family is tested in a cluster without it.
func TestObjectsHaveOnlyTheFamiliesOfTheCluster(t *testing.T) {
	both := Service{Name: "both", ExternalIP: true, VIP: true, Endpoints: At(network.LocalPod1, network.RemotePod1)}
	six := Service{Name: "six", Slot: 2, Families: []model.Family{model.IPv6}, Endpoints: At(network.LocalPod1)}
	objects, err := Objects([]Service{both, six}, []model.Family{model.IPv4})
	require.NoError(t, err)
	text, err := evidence.Objects(objects)
	require.NoError(t, err)
	assert.Contains(t, text, "ipFamilyPolicy: SingleStack")
	for _, of6 := range []string{"IPv6", "fd00:", "2001:db8:", "six"} {
		assert.NotContains(t, text, of6)
	}
}
