package conntrack

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// claimedAddress is the address and port that all services of [claimedBy] claim.
var claimedAddress = netip.MustParseAddrPort("198.51.100.1:53")

const claimedNodePort = 30053

// claimant is one of thousands of services that claim one address and one node port, each with an endpoint of its own.
func claimant(i int) (model.ServiceName, *udpService, func(model.PortName) targets) {
	name := model.ServiceName{Namespace: "default", Name: fmt.Sprint("service-", i)}
	s := &udpService{addresses: []netip.Addr{claimedAddress.Addr()}}
	s.ports = []*udpPort{{service: s, name: model.PortName{Service: name, Protocol: model.UDP},
		number: claimedAddress.Port(), nodePort: claimedNodePort}}
	return name, s, func(model.PortName) targets { return targets{claimedEndpoint(i): struct{}{}} }
}

func claimedEndpoint(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 53)
}

func claimedBy(n int) *index {
	x := newIndex()
	for i := range n {
		name, service, serving := claimant(i)
		x.set(name, service, serving, &pending{})
	}
	return x
}

// One tenant can make thousands of services claim one address.
func TestAChangeCostsTheSameHoweverManyServicesClaimTheAddress(t *testing.T) {
	const services, changes = 4000, 1000
	x := claimedBy(services)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range changes {
		name, service, serving := claimant(i)
		x.set(name, &udpService{}, nil, &pending{})
		x.set(name, service, serving, &pending{})
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(changes*services*8/4),
		"less than a quarter of one copy of the claimants for each change")
}

func TestAFlowMayGoToAnEndpointOfAnyServiceThatClaimsItsAddress(t *testing.T) {
	const services = 3
	x := claimedBy(services)
	flow := func(i int) Flow {
		client := netip.MustParseAddrPort("192.0.2.9:4000")
		return Flow{Source: client, Destination: claimedAddress, ReplySource: claimedEndpoint(i),
			ReplyDestination: client}
	}
	for i := range services {
		require.False(t, x.stale(flow(i)), i)
	}
	require.True(t, x.stale(flow(services)))
	for i := range services { // the one that came first goes first
		name, _, _ := claimant(i)
		x.set(name, &udpService{}, nil, &pending{})
		for j := range services {
			require.Equal(t, j <= i, x.stale(flow(j)), "%d without %d", j, i)
		}
	}
	require.Empty(t, x.addresses)
	require.Empty(t, x.nodePorts)
	require.Empty(t, x.servedBy)
}

// A service from an API server that checks nothing may have a port twice.
func TestAPortThatAServiceHasTwiceLeavesNothingBehind(t *testing.T) {
	x := newIndex()
	name, service, serving := claimant(1)
	again := *service.ports[0]
	again.number, again.nodePort = 54, 30054
	service.ports = append(service.ports, &again)
	for range 2 {
		x.set(name, service, serving, &pending{})
	}
	x.set(name, &udpService{}, nil, &pending{})
	require.Empty(t, x.addresses)
	require.Empty(t, x.nodePorts)
	require.Empty(t, x.ports)
	require.Empty(t, x.servedBy)
}

// BenchmarkClaimants changes one service, and looks up one flow to an address that many services claim.
func BenchmarkClaimants(b *testing.B) {
	for _, services := range []int{10, 1000, 10000} {
		x := claimedBy(services)
		b.Run(fmt.Sprintf("change/services=%d", services), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				name, service, serving := claimant(i % services)
				x.set(name, &udpService{}, nil, &pending{})
				x.set(name, service, serving, &pending{})
			}
		})
		b.Run(fmt.Sprintf("flow/services=%d", services), func(b *testing.B) {
			f := Flow{Destination: claimedAddress, ReplySource: claimedEndpoint(services)}
			for b.Loop() {
				if !x.stale(f) {
					b.Fatal("nothing serves it")
				}
			}
		})
	}
}
