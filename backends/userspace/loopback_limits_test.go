package userspace_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The Loopback serves the node ports that the backend beside it serves, although it counts less: a service has one
// address there, and its other ports are none.
func TestALoopbackKeepsToTheLimitsOfTheBackendBesideIt(t *testing.T) {
	const limit = 4
	common := frontend.Common{Families: []model.Family{model.IPv4}, Host: &nodeaddr.Fake{}, Limits: frontend.Limits{
		Namespace: frontend.Budget{Frontends: limit}}}
	common.Host.(*nodeaddr.Fake).Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("127.0.0.1"), Interface: "lo"})
	kernel, err := frontend.New(frontend.Options{Families: common.Families, Limits: common.Limits,
		Apply: func(context.Context, *frontend.Changes) error { return nil }})
	require.NoError(t, err)
	local, err := userspace.NewLoopback(t.Context(), userspace.Options{Common: common})
	require.NoError(t, err)
	defer local.Close()
	endpoint := func(port string) any { return fakemodel.Endpoint(port, "127.0.0.1:1").Build() }
	bigEndpoints := []any{endpoint("evil/big:http/TCP"), endpoint("evil/big:more/TCP")}
	smallEndpoint := endpoint("evil/small:http/TCP")
	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return local.Beside(kernel) }})
	served := func() (list []string) {
		for _, l := range local.Listeners() {
			list = append(list, l.Port.String())
		}
		slices.Sort(list)
		return list
	}
	ports := map[uint16]bool{}
	nodePort := func() uint16 {
		for {
			if p := freeNodePort(t); !ports[p] {
				ports[p] = true
				return p
			}
		}
	}
	service := func(name string, number int) *fakemodel.ServiceBuilder {
		created := time.Date(2020+number, 1, 1, 0, 0, 0, 0, time.UTC)
		return fakemodel.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", number)).Created(created)
	}
	big := service("evil/big", 1).Port("http", 80).NodePort(nodePort()).Port("more", 81).NodePort(nodePort())
	bystander := service("prod/web", 2).Port("http", 80).NodePort(nodePort()).Build()
	d.Set(big.Build(), bystander, endpoint("prod/web:http/TCP"))
	d.Set(bigEndpoints...)
	d.Sync()
	assert.Equal(t, []string{"evil/big:http/TCP", "evil/big:more/TCP", "prod/web:http/TCP"}, served())

	d.Set(big.ExternalIP("203.0.113.1").Build())
	errs := sink.PortErrors(d.TrySync())
	require.Len(t, errs, 1, "the kernel says so, and nobody else")
	assert.Equal(t, "evil/big:more/TCP", errs[0].Port.String())
	assert.Equal(t, []string{"evil/big:http/TCP", "prod/web:http/TCP"}, served())
	small := service("evil/small", 3).Port("http", 80).NodePort(nodePort()).Build()
	d.Set(small, smallEndpoint)
	assert.Len(t, sink.PortErrors(d.TrySync()), 2)
	assert.Equal(t, []string{"evil/big:http/TCP", "prod/web:http/TCP"}, served(), "one that is new")

	d.Delete(bigEndpoints...)
	d.Delete(big.Build())
	d.Sync()
	assert.Equal(t, []string{"evil/small:http/TCP", "prod/web:http/TCP"}, served(), "it fits again, without a change")
	d.Delete(smallEndpoint, small)
	d.Sync()
	assert.Equal(t, []string{"prod/web:http/TCP"}, served())
}
