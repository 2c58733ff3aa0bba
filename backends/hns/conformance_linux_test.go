package hns

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// simulated returns a backend on a simulation of HNS, in a network of a type, and what the simulation does with
// packets.
func simulated(t *testing.T, networkType string, change ...func(*machine)) (conformance.Factory, conformance.Forward) {
	m := &machine{hns: dp.NewFake(), record: t.TempDir() + "/frontends"}
	m.hns.UniqueAddresses = true
	for _, c := range change {
		c(m)
	}
	m.hns.SetNetwork(dp.Network{Name: network, Type: networkType, RemoteSubnets: []dp.RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.180.2.0/24"), Provider: netip.MustParseAddr("172.30.2.2")},
	}}, false)
	// The local pods of the suite.
	m.addPod("10.180.1.11", "fd00:180:1::11")
	m.addPod("10.180.1.12", "fd00:180:1::12")
	m.addPod("10.180.1.13", "fd00:180:1::13")
	empty := m.hns.Dump()
	options := Options{Network: network, RecordFile: m.record, Dataplane: m.hns, checkInterval: -1,
		hostMAC: func(netip.Addr) (string, error) { return "00-15-5d-00-00-aa", nil }}
	var node conformance.Env
	f := conformance.Factory{
		New: func(ctx context.Context, env conformance.Env) (sink.Sink, error) {
			node, m.hns.Host = env, env.HostAddresses
			o := options
			o.Families = env.Families
			if networkType == "Overlay" {
				o.SourceVIP = netip.MustParseAddr("10.180.1.2")
			}
			return New(ctx, o)
		},
		Cleanup: func(ctx context.Context, env conformance.Env) error {
			o := options
			o.Families = env.Families
			return CleanUp(ctx, o)
		},
		Dump: func(context.Context, conformance.Env) (string, error) { return m.hns.Dump(), nil },
		Break: func(context.Context, conformance.Env) error {
			m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
			return nil
		},
		Lacks: []conformance.Feature{
			conformance.SCTP, conformance.SessionAffinity, conformance.SourceRanges,
			conformance.NodePortAddresses, conformance.LoopbackNodePorts,
			conformance.Refusal, conformance.SourcePreservation, conformance.UnusedAddresses, conformance.Routes,
		},
	}
	if networkType == "Overlay" {
		f.Lacks = append(f.Lacks, conformance.IPv6)
	}
	t.Cleanup(func() {
		if left := m.hns.Dump(); left != empty {
			t.Errorf("a clean-up has left something:\n%s\nthere was:\n%s", left, empty)
		}
	})
	return f, func(flow oracle.Flow, sourcePort uint16) oracle.Observation {
		got := m.hns.Forward(dp.Packet{Source: netip.AddrPortFrom(flow.Source, sourcePort),
			Destination: flow.Destination,
			Protocol:    flow.Protocol}, node.HostAddresses)
		switch {
		case got.Broken:
			return oracle.Observation{Verdict: oracle.Drop}
		case !got.Endpoint.IsValid():
			return oracle.Observation{Verdict: oracle.NotOurs}
		}
		source := flow.Source
		if !got.SourceKept {
			source = node.NodeIPs[slices.Index(node.Families, flow.Family())]
		}
		return oracle.Observation{Verdict: oracle.Deliver, Endpoint: got.Endpoint, Source: source}
	}
}

func TestSimulatedConformance(t *testing.T) {
	for _, networkType := range []string{"L2Bridge", "Overlay"} {
		t.Run(networkType, func(t *testing.T) {
			f, forward := simulated(t, networkType)
			conformance.Simulate(t, f, forward)
		})
		t.Run(networkType+", HNS normalises", func(t *testing.T) {
			f, forward := simulated(t, networkType, func(m *machine) { m.normalise(false) })
			conformance.Simulate(t, f, forward)
		})
	}
}

func TestSimulatedRandomStates(t *testing.T) {
	for _, networkType := range []string{"L2Bridge", "Overlay"} {
		t.Run(networkType, func(t *testing.T) {
			f, forward := simulated(t, networkType)
			conformance.SimulateRandom(t, f, forward, 1, 200)
		})
	}
}
