package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// host returns an address, the same one for the same number: 10.0.0.n or fd00::n.
func host(f model.Family, n int) netip.Addr {
	if f == model.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%d", n))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", n))
}

// Host numbers of the services' addresses.
const (
	clusterIP    = 101
	externalIP   = 102
	loadBalancer = 103
	otherIP      = 104
	nodeIP       = 105
)

// spec is a service with one port, in one family.
type spec struct {
	name      string // default "dns"
	ip        int    // of the cluster IP, default clusterIP
	external  int
	lb        int
	port      uint16 // default 53
	nodePort  uint16
	protocol  model.Protocol // default UDP
	created   int            // the year; 0: unknown
	endpoints []endpoint
}

// endpoint is a ready endpoint on a host, unless it says otherwise.
type endpoint struct {
	host       int
	port       uint16 // default 5353
	ready      bool
	notServing bool
	goes       bool // serving, terminating
	noSet      bool
}

func (s spec) entry(t testing.TB, f model.Family) *sink.ServiceEntry {
	t.Helper()
	or := func(v, fallback int) int {
		if v == 0 {
			return fallback
		}
		return v
	}
	if s.name == "" {
		s.name = "dns"
	}
	if s.protocol == 0 {
		s.protocol = model.UDP
	}
	svc := model.Service{
		Name:       model.ServiceName{Namespace: "default", Name: s.name},
		ClusterIPs: []netip.Addr{host(f, or(s.ip, clusterIP))},
		Ports: []model.ServicePort{{Name: "p", Protocol: s.protocol, Port: uint16(or(int(s.port), 53)),
			NodePort: s.nodePort}},
	}
	if s.created != 0 {
		svc.Created = time.Date(s.created, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if s.external != 0 {
		svc.ExternalIPs = []netip.Addr{host(f, s.external)}
	}
	if s.lb != 0 {
		svc.LoadBalancerIPs = []netip.Addr{host(f, s.lb)}
	}
	checked, err := model.NewService(svc)
	require.NoError(t, err)
	e := &sink.ServiceEntry{Service: checked}
	for _, ep := range s.endpoints {
		m := model.Endpoint{
			Port:    checked.PortName(checked.Ports[0]),
			Target:  netip.AddrPortFrom(host(f, ep.host), uint16(or(int(ep.port), 5353))),
			Sets:    model.ClusterSet,
			Ready:   !ep.goes && !ep.notServing || ep.ready,
			Serving: !ep.notServing, Terminating: ep.goes,
		}
		if ep.noSet {
			m.Sets = 0
		}
		checkedEndpoint, err := model.NewEndpoint(m)
		require.NoError(t, err)
		e.Endpoints = append(e.Endpoints, checkedEndpoint)
	}
	slices.SortFunc(e.Endpoints, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
	return e
}

// describe makes the calls that lead from one state to another, in the order that a Sink may expect.
func describe(s sink.Sink, before, after []*sink.ServiceEntry) {
	find := func(list []*sink.ServiceEntry, name model.ServiceName) *sink.ServiceEntry {
		for _, e := range list {
			if e.Service.Name == name {
				return e
			}
		}
		return &sink.ServiceEntry{}
	}
	for _, old := range before {
		now := find(after, old.Service.Name)
		for _, e := range old.Endpoints {
			if !slices.ContainsFunc(now.Endpoints, func(n *model.Endpoint) bool { return n.Key() == e.Key() }) {
				s.DeleteEndpoint(e.Key())
			}
		}
		if now.Service == nil {
			s.DeleteService(old.Service.Name)
		}
	}
	for _, now := range after {
		old := find(before, now.Service.Name)
		if !now.Service.Equal(old.Service) {
			s.SetService(now.Service)
		}
		for _, e := range now.Endpoints {
			if !slices.ContainsFunc(old.Endpoints, func(o *model.Endpoint) bool { return o.Equal(e) }) {
				s.SetEndpoint(e)
			}
		}
	}
}

// nodePorts says that node ports are served on one address of each family.
func nodePorts() nodeaddr.Addresses {
	return nodeaddr.Addresses{IPs: []netip.Addr{host(model.IPv4, nodeIP), host(model.IPv6, nodeIP)}}
}

// wrap is Wrap without a backend, on a node with the addresses of nodePorts.
func wrap(t testing.TB, table Table, families ...model.Family) *Reconciler {
	return Wrap(t.Context(), nil, Options{Table: table, Families: families, Addresses: nodePorts})
}

// testTable is a Table that a test can fill and read.
type testTable interface {
	Table
	Add(...Flow)
	Flows() []Flow
}

// flowTo makes a flow from a client to a service address that goes to a target, or that is not rewritten if there is
// none.
func flowTo(f model.Family, client uint16, to netip.AddrPort, target netip.AddrPort) Flow {
	source := netip.AddrPortFrom(host(f, 200), client)
	if !target.IsValid() {
		target = to
	}
	return Flow{Source: source, Destination: to, ReplySource: target, ReplyDestination: source}
}

// nodeHost is a host with addresses by number.
type nodeHost struct{ nodeaddr.Fake }

func (h *nodeHost) Set(f model.Family, numbers ...int) {
	var list []nodeaddr.HostAddress
	for _, n := range numbers {
		list = append(list, nodeaddr.HostAddress{Addr: host(f, n), Interface: "eth0"})
	}
	h.Fake.Set(list...)
}
