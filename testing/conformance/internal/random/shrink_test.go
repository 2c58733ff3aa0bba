package random

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

func TestShrinkKeepsWhatTheFailureNeedsAndNothingElse(t *testing.T) {
	// The script fails if svc-a had a pod on local-1 in some wave, and svc-b is Local in the last one.
	fails := func(sc Script) bool {
		had := false
		for _, st := range sc.Steps {
			for _, s := range st.Services {
				for _, e := range s.Endpoints {
					had = had || s.Name == "svc-a" && e.At == network.LocalPod1
				}
			}
		}
		for _, s := range sc.Steps[len(sc.Steps)-1].Services {
			if s.Name == "svc-b" && s.ExternalLocal && had {
				return true
			}
		}
		return false
	}
	ports := []cluster.ServicePort{{Protocol: model.TCP}, {Protocol: model.UDP}, {Protocol: model.SCTP}}
	a := reachable(cluster.Service{Name: "svc-a", Slot: 1, Ports: ports,
		Endpoints: cluster.At(network.LocalPod1, network.LocalPod2)})
	b := reachable(cluster.Service{Name: "svc-b", Slot: 2, Ports: ports, Endpoints: cluster.At(network.RemotePod1)})
	local := b
	local.ExternalLocal = true
	other := reachable(cluster.Service{Name: "svc-c", Slot: 3, Ports: ports, Endpoints: cluster.At(network.RemotePod2)})
	sc := Script{Steps: []Step{
		{Services: []cluster.Service{other}},
		{Services: []cluster.Service{a, b, other}, event: restarted},
		{Services: []cluster.Service{b, other}},
		{Services: []cluster.Service{other, local}, event: cancelled},
	}}
	require.True(t, fails(sc))
	small := Shrink(sc, fails, 1000)
	require.True(t, fails(small))
	onePort := ports[:1]
	assert.Equal(t, []Step{
		{Services: []cluster.Service{{Name: "svc-a", Slot: 1, Ports: onePort, Endpoints: cluster.At(network.LocalPod1)}}},
		{Services: []cluster.Service{{Name: "svc-b", Slot: 2, Ports: onePort, Endpoints: []cluster.Endpoint{},
			ExternalLocal: true}}},
	}, small.Steps)
}

func TestShrinkTriesAgainWhatItCouldNotLeaveOutAtFirst(t *testing.T) {
	services := func(names ...string) (list []cluster.Service) {
		for i, name := range names {
			list = append(list, cluster.Service{Name: name, Slot: i + 1, Ports: []cluster.ServicePort{{Protocol: model.TCP}}})
		}
		return list
	}
	// svc-a is needed as long as svc-b exists.
	fails := func(sc Script) bool {
		names := sc.serviceNames()
		return slices.Contains(names, "svc-c") && (slices.Contains(names, "svc-a") || !slices.Contains(names, "svc-b"))
	}
	small := Shrink(Script{Steps: []Step{{Services: services("svc-a", "svc-b", "svc-c")}}}, fails, 100)
	assert.Equal(t, []string{"svc-c"}, small.serviceNames())
}

func TestShrinkAsksNoMoreOftenThanItMay(t *testing.T) {
	g := NewGenerator(1, backend.Factory{})
	var sc Script
	var services []cluster.Service
	for range EpisodeLength {
		st := g.Next(services)
		services = st.Services
		sc.Steps = append(sc.Steps, st)
	}
	for _, tries := range []int{0, 1, 7} {
		asked := 0
		Shrink(sc, func(Script) bool { asked++; return asked%2 == 0 }, tries)
		assert.Equal(t, tries, asked)
	}
}

// reachable is a service with every kind of external address.
func reachable(s cluster.Service) cluster.Service {
	s.NodePort, s.ExternalIP, s.VIP = true, true, true
	return s
}
