package iptables_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// randomWorld changes a cluster at random, in which services often want the same addresses and ports.
type randomWorld struct {
	*rand.Rand
	r         *rig
	names     int // of services
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
	detects   bool
}

func (w *randomWorld) chance(percent int) bool { return w.IntN(100) < percent }

func (w *randomWorld) setNode() {
	n := fm.Node("n1").IP("192.0.2.10", "2001:db8::10")
	switch w.detects = true; {
	case w.chance(60):
		n.LocalPods(model.LocalPods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"),
			netip.MustParsePrefix("fd00:244:1::/64")}})
	case w.chance(30):
		n.LocalPods(model.LocalPods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/25"),
			netip.MustParsePrefix("10.244.1.128/25"),
			netip.MustParsePrefix("fd00:244:1::/64"), netip.MustParsePrefix("fd00:245::/64")}})
	case w.chance(50):
		n.LocalPods(model.LocalPods{InterfacePrefix: "veth"})
	default:
		w.detects = false
	}
	w.node = n.Build()
	w.r.Set(w.node)
	for name := range w.services { // their routes depend on it
		w.setService(name)
	}
}

func (w *randomWorld) change() {
	name := model.ServiceName{Namespace: "ns", Name: fmt.Sprintf("s%d", w.IntN(w.names))}
	svc := w.services[name]
	switch {
	case w.chance(1):
		w.setNode()
	case svc != nil && w.chance(15):
		w.r.Delete(name)
		delete(w.services, name)
		maps.DeleteFunc(w.endpoints,
			func(k model.EndpointKey, _ *model.Endpoint) bool { return k.Port.Service == name })
	case svc != nil && w.chance(70):
		w.changeEndpoint(svc)
	default:
		w.setService(name)
	}
}

func (w *randomWorld) changeEndpoint(svc *model.Service) {
	target := fmt.Sprintf("10.244.%d.%d:80", 1+w.IntN(2), 1+w.IntN(12))
	if w.chance(30) {
		target = fmt.Sprintf("[fd00:244:%d::%d]:80", 1+w.IntN(2), 1+w.IntN(12))
	}
	ep := *fm.Endpoint(svc.PortName(svc.Ports[0]).String(), target).Build()
	if w.endpoints[ep.Key()] != nil && w.chance(70) {
		w.r.Delete(&ep)
		delete(w.endpoints, ep.Key())
		return
	}
	ep.Local = strings.Contains(target, "244.1.") || strings.Contains(target, "244:1:")
	ep.Sets = model.ClusterSet
	if ep.Local {
		ep.Sets = model.EndpointSets(w.IntN(4))
	} else if w.chance(20) {
		ep.Sets = 0
	}
	w.r.Set(&ep)
	w.endpoints[ep.Key()] = &ep
}

func (w *randomWorld) setService(name model.ServiceName) {
	n := 0
	_, err := fmt.Sscanf(name.Name, "s%d", &n)
	require.NoError(w.r.t, err)
	ips := []string{fmt.Sprintf("10.96.%d.%d", n%3, 1+n), fmt.Sprintf("fd00:96::%x:%x", n%3, 1+n)}
	b := fm.Service(name.String()).ClusterIP(ips[:1+w.IntN(2)]...)
	port := uint16(80)
	if w.chance(20) {
		port = uint16(w.IntN(65535)) + 1
	}
	if old := w.services[name]; old != nil { // its endpoints belong to that port
		b.Port(old.Ports[0].Name, port)
	} else {
		b.Port("a", port)
	}
	for _, o := range []struct {
		percent int
		set     func() *fm.ServiceBuilder
	}{
		{30, func() *fm.ServiceBuilder { return b.ExternalIP(fmt.Sprintf("198.51.100.%d", 1+w.IntN(9))) }},
		{30, func() *fm.ServiceBuilder { return b.LoadBalancerIP(fmt.Sprintf("203.0.113.%d", 1+w.IntN(9))) }},
		{30, func() *fm.ServiceBuilder { return b.NodePort(uint16(30000 + 7*w.IntN(20))) }},
		{30, b.InternalLocal}, {10, b.NoEndpoints}, {15, b.MasqueradeAll},
		{20, func() *fm.ServiceBuilder { return b.Affinity(time.Duration(1+w.IntN(2)) * time.Hour) }},
		{30, func() *fm.ServiceBuilder {
			return b.SourceRange("10.0.0.0/8", fmt.Sprintf("203.%d.0.0/16", w.IntN(3)), "192.0.2.0/25")
		}},
	} {
		if w.chance(o.percent) {
			o.set()
		}
	}
	if w.detects {
		b.DetectsLocalPods()
	}
	svc := b.Build()
	if len(svc.LoadBalancerIPs)+len(svc.ExternalIPs) > 0 && w.chance(50) {
		svc = b.ExternalLocal().Build()
	}
	w.r.Set(svc)
	w.services[name] = svc
}

// tamper does what another program might do to the tables.
func (w *randomWorld) tamper() {
	fake := w.r.fakes[model.IPv4]
	switch w.IntN(3) {
	case 0:
		require.NoError(w.r.t, fake.Load("*nat\nCOMMIT\n"))
	case 1:
		require.NoError(w.r.t, fake.Load("*filter\nCOMMIT\n"))
	default:
		b := &dataplane.Batch{Tables: []dataplane.TableBatch{{Table: dataplane.NAT,
			Chains: []dataplane.Chain{{Name: "KPL-SERVICES", Rules: []string{"-j RETURN"}}}}}}
		require.NoError(w.r.t, fake.RestoreAsSomebodyElse(b))
	}
}

// flows are connections from everywhere to all that services have, and to addresses and ports that no service has.
func (w *randomWorld) flows() (flows []oracle.Flow) {
	parse := netip.MustParseAddr
	sources := []struct {
		kind oracle.SourceKind
		addr netip.Addr
	}{
		{oracle.LocalPod, parse("10.244.1.3")}, {oracle.LocalPod, parse("fd00:244:1::3")},
		{oracle.LocalPod, parse("10.244.1.200")},
		{oracle.RemotePod, parse("10.244.2.3")}, {oracle.External, parse("203.0.113.99")},
		{oracle.External, parse("203.1.1.1")},
		{oracle.External, parse("2001:db8:5::1")}, {oracle.Node, parse("192.0.2.10")},
		{oracle.Node, parse("2001:db8::10")},
	}
	to := map[netip.AddrPort]model.Protocol{
		netip.MustParseAddrPort("10.96.0.250:80"): model.TCP, netip.MustParseAddrPort("192.0.2.10:30001"): model.TCP,
	}
	for _, svc := range w.services {
		p := svc.Ports[0]
		for _, a := range slices.Concat(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs) {
			to[netip.AddrPortFrom(a, p.Port)] = p.Protocol
			to[netip.AddrPortFrom(a, p.Port%65535+1)] = p.Protocol
		}
		if p.NodePort != 0 {
			for _, a := range w.node.IPs {
				to[netip.AddrPortFrom(a, p.NodePort)] = p.Protocol
			}
			to[netip.AddrPortFrom(parse("127.0.0.1"), p.NodePort)] = p.Protocol
		}
	}
	for dst, protocol := range to {
		for _, s := range sources {
			if s.addr.Is4() == dst.Addr().Is4() && (!dst.Addr().IsLoopback() || s.kind == oracle.Node) {
				flows = append(flows, oracle.Flow{From: s.kind, Source: s.addr, Destination: dst, Protocol: protocol})
			}
		}
	}
	return flows
}

// check follows packets through the rules, and compares with the oracle.
func (w *randomWorld) check() {
	t := w.r.t
	o, err := oracle.New(w.r.State(), oracle.Config{})
	require.NoError(t, err)
	walkers := map[model.Family]*walker{}
	for _, f := range model.Families() {
		walkers[f] = newWalker(t, w.r.dump(f), w.node.IPs)
	}
	for _, f := range w.flows() {
		want, err := o.Expect(f)
		require.NoError(t, err)
		for _, mark := range []uint64{0, 0xca6c} { // that is wg-quick's; it has bit 14
			got := walkers[f.Family()].fates(f, mark)
			if !slices.ContainsFunc(expected(want, mark != 0),
				func(fates []string) bool { return slices.Equal(fates, got) }) {
				require.Failf(t, "wrong", "%v, mark %#x\ngot:  %q\nwant: %v\nstate:\n%v\nrules:\n%s", f, mark, got,
					want, w.r.State(), w.r.dump(f.Family()))
			}
		}
	}
}

// Random changes, divided into waves at random, with random failures and restarts of the backend: after each Sync that
// succeeds, the rules treat packets as the oracle says.
func TestAnyWayToAStateDoesWhatTheOracleSays(t *testing.T) {
	seeds := uint64(6) // each number of services, and chains that are divided
	if need.IsDeep() {
		seeds = 15
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			reg := prometheus.NewRegistry()
			split := 0 // as by default
			if seed%7 == 5 {
				split = 12
			}
			w := &randomWorld{Rand: rand.New(rand.NewPCG(seed, 0)),
				r:        newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}}.Splitting(split)),
				names:    5 + 15*int(seed%5),
				services: map[model.ServiceName]*model.Service{}, endpoints: map[model.EndpointKey]*model.Endpoint{}}
			faults := fm.NewFaults(seed, 0)
			w.setNode()
			for range 20 {
				for range 1 + w.IntN(2*w.names) {
					w.change()
				}
				faults.SetProbability(0)
				if w.chance(10) {
					faults.SetProbability(0.5)
				}
				for _, fake := range w.r.fakes {
					fake.FailRestore = func(*dataplane.Batch) error { return faults.Next("restore") }
				}
				if w.chance(10) {
					w.tamper()
					w.r.backend.ForceResync()
				}
				if w.chance(5) {
					w.r.Restart()
				}
				before := map[model.Family]string{model.IPv4: w.r.dump(model.IPv4), model.IPv6: w.r.dump(model.IPv6)}
				err := w.r.TrySync()
				if split > 0 || seed%5 == 0 { // it takes as long as everything else
					for f, fake := range w.r.fakes {
						changesAtOnce(t, f, before[f], fake.Batches())
					}
				}
				if err != nil {
					require.ErrorIs(t, err, fm.ErrFault)
					continue
				}
				w.check()
				w.r.checkCounts(reg)
			}
		})
	}
}
