package ipvs

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	nft "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// external is a service whose external addresses serve different endpoints to different sources if the policy is Local.
func external(local bool) *model.Service {
	b := fm.Service("default/outside").DetectsLocalPods().ClusterIP("10.96.0.20").ExternalIP("203.0.113.20").
		Port("http", 80)
	if local {
		b.ExternalLocal()
	}
	return b.Build()
}

// sorted returns the lines of the table of a family, whose chains are in the order in which they were made.
func (k *kernel) sorted(f model.Family) string {
	lines := strings.Split(k.table(f), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func externalEndpoints() []any {
	return []any{fm.Endpoint("default/outside:http/TCP", pod1.String()).Local().Build(),
		fm.Endpoint("default/outside:http/TCP", pod2.String()).Build()}
}

// The names of two ports may have the same hash: then the one that comes later has another mark.
func TestTwoPortsNeverHaveTheSameMark(t *testing.T) {
	free := newPorts(nil, newServers(), nil)
	free.config = &config{mark: 1 << 14}
	names, first, second := map[uint32]string{}, "", ""
	for i := 0; second == ""; i++ {
		service := model.ServiceName{Namespace: "default", Name: fmt.Sprint("web-", i)}
		m := free.mark(model.PortName{Service: service, Port: "http", Protocol: model.TCP})
		if names[m] != "" {
			first, second = names[m], service.String()
		}
		names[m] = service.String()
	}
	k := newKernel(t)
	b := k.start(t)
	put(t, b, backendtest.Node())
	add := func(service, clusterIP, externalIP string) (marks int) {
		put(t, b, fm.Service(service).DetectsLocalPods().ClusterIP(clusterIP).ExternalIP(externalIP).Port("http", 80).
			ExternalLocal().Build(),
			fm.Endpoint(service+":http/TCP", pod1.String()).Local().Build(),
			fm.Endpoint(service+":http/TCP", pod2.String()).Build())
		return strings.Count(k.ipvs.Dump(), "-A -f ")
	}
	one := add(first, "10.96.0.1", "203.0.113.1")
	require.NotZero(t, one)
	require.Equal(t, 2*one, add(second, "10.96.0.2", "203.0.113.2"))
	require.Equal(t, 2*one, add(second, "10.96.0.2", "203.0.113.3"), "it keeps its own")
	b.DeleteService(fm.Service(first).Build().Name)
	put(t, b)
	require.Equal(t, one, strings.Count(k.ipvs.Dump(), "-A -f "))
	require.Contains(t, k.table(model.IPv4), "chain "+markPrefix)
}

// The chains that set a port's marks go with the last that goes to them, not at the next resync.
func TestTheChainsOfMarksGoWithTheirPort(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, *Backend){
		"its policy is no longer Local": func(t *testing.T, b *Backend) { put(t, b, external(false)) },
		"its service goes": func(t *testing.T, b *Backend) {
			b.DeleteService(external(true).Name)
			require.NoError(t, b.Sync(t.Context()))
			put(t, b, append(externalEndpoints(), external(false))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKernel(t)
			b := k.start(t)
			put(t, b, append(append(web(), externalEndpoints()...), backendtest.Node(), external(false))...)
			without := k.sorted(model.IPv4)
			require.NotContains(t, without, markPrefix)
			put(t, b, external(true))
			with := k.sorted(model.IPv4)
			require.Contains(t, with, "chain "+markPrefix)
			require.Contains(t, with, "chain pod-"+markPrefix)
			for range 2 {
				leave(t, b)
				require.Equal(t, without, k.sorted(model.IPv4))
				put(t, b, external(true))
				require.Equal(t, with, k.sorted(model.IPv4), "the same marks again")
			}
		})
	}
}

func TestTheChainsOfMarksGoWhenTheirRoutesChange(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(externalEndpoints(), backendtest.Node(), external(true))...)
	with := k.sorted(model.IPv4)
	b.DeleteEndpoint(externalEndpoints()[0].(*model.Endpoint).Key())
	require.NoError(t, b.Sync(t.Context()))
	table := k.sorted(model.IPv4)
	require.Contains(t, table, "other-"+rules.DropChain, "others have no endpoint")
	require.NotContains(t, table, "other-"+keepChain)
	put(t, b, externalEndpoints()[0])
	require.Equal(t, with, k.sorted(model.IPv4))
}

func TestChainsOfMarksAreDeletedWhenEverythingIsDescribedAgain(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(externalEndpoints(), backendtest.Node(), external(true))...)
	node := backendtest.Node()
	node.LocalPods = model.LocalPods{Bridge: "cni0"}
	put(t, b, node, external(false))
	require.NotContains(t, k.table(model.IPv4), markPrefix)
}

// Before Linux 6.2 a chain counts as used for a while after the last that went to it has gone.
func TestChainsThatAreStillUsedGoLater(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(externalEndpoints(), backendtest.Node(), external(false))...)
	without := k.sorted(model.IPv4)
	put(t, b, external(true))
	k.nft.FailApply = func(tx *nft.Transaction) error {
		if strings.Contains(tx.Text(), "delete chain") {
			return &nft.OpError{Table: tx.Table, Op: "delete chain", Err: syscall.EBUSY}
		}
		return nil
	}
	put(t, b, external(false))
	require.Contains(t, k.sorted(model.IPv4), "chain "+markPrefix)
	k.nft.FailApply = nil
	b.drain(t, model.IPv4)
	require.Equal(t, without, k.sorted(model.IPv4))
}
