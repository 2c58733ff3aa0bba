package random

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// TrialsPerWave is the number of connections tried in each state of a random test.
const TrialsPerWave = 48

// Script is a sequence of events that a random test executes and can reproduce.
type Script struct {
	Setup cluster.Setup
	Steps []Step
}

// Step is a wave and the event that accompanies it.
type Step struct {
	event    event
	Services []cluster.Service
}

// event happens to the backend before or during a wave.
type event int

const (
	nothing event = iota
	restarted
	cancelled // the Sync is cancelled and retried
	resynced  // the backend resyncs
)

func (e event) String() string {
	return [...]string{"", "the backend is restarted", "the first Sync is cancelled", "a resync is forced"}[e]
}

// String returns the script in readable form.
func (sc Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "detector of local pods: %v; node ports: %v; masquerade all: %t\n", sc.Setup.Detector,
		sc.Setup.NodePorts, sc.Setup.MasqueradeAll)
	for i, st := range sc.Steps {
		fmt.Fprintf(&b, "wave %d", i+1)
		if st.event != nothing {
			fmt.Fprintf(&b, " (%v)", st.event)
		}
		b.WriteString(":\n")
		for _, svc := range st.Services {
			fmt.Fprintf(&b, "  %v\n", svc)
		}
	}
	return b.String()
}

// Generator makes random scripts. The same seed and features produce the same script.
type Generator struct {
	rng     *rand.Rand
	factory backend.Factory
	names   int // number of services so far
	// Contests allows several services to list the contested address and the node's address.
	Contests bool
}

// NewGenerator returns a generator for a backend.
func NewGenerator(seed uint64, f backend.Factory) *Generator {
	return &Generator{rng: rand.New(rand.NewPCG(seed, 0)), factory: f}
}

// chance is true with probability 1/n.
func (g *Generator) chance(n int) bool { return g.rng.IntN(n) == 0 }

func pick[T any](g *Generator, list ...T) T { return list[g.rng.IntN(len(list))] }

// The number of waves of an episode, which begins with a fresh backend.
const EpisodeLength = 10

// Setup returns a random setup that the backend supports.
func (g *Generator) Setup() cluster.Setup {
	s := cluster.Setup{Detector: pick(g, cluster.ByNodeCIDR, cluster.ByNodeCIDR, cluster.ByClusterCIDR, cluster.Undetected,
		cluster.ByBridge, cluster.ByInterface)}
	if s.Detector == cluster.ByBridge && g.factory.WaivesCase(backend.BridgeCase) ||
		s.Detector == cluster.ByInterface && g.factory.WaivesCase(backend.InterfaceCase) {
		s.Detector = cluster.ByNodeCIDR
	}
	s.NodePorts = pick(g, cluster.OnNodeIPs, cluster.OnNodeIPs, cluster.OnAllAddresses, cluster.OnOtherIPv4Only,
		cluster.OnPrimaryAndOtherIPv4)
	if g.factory.LacksFeature(backend.NodePortAddresses) {
		s.NodePorts = cluster.OnAllAddresses
	}
	s.MasqueradeAll = g.chance(6)
	return s
}

const maxServices = 6

// mostPorts is the maximum number of ports of a service: two for each protocol.
const mostPorts = 6

// Next returns a random successor of a state.
func (g *Generator) Next(services []cluster.Service) Step {
	next := slices.Clone(services)
	for range 1 + g.rng.IntN(3) {
		switch {
		case len(next) == 0, len(next) < maxServices && g.chance(3):
			next = append(next, g.service(next))
		case g.chance(5):
			i := g.rng.IntN(len(next))
			next = slices.Delete(next, i, i+1)
		case len(next) > 1 && g.chance(8):
			// Swap the addresses of two services.
			i, j := g.rng.IntN(len(next)), g.rng.IntN(len(next))
			next[i].Slot, next[j].Slot = next[j].Slot, next[i].Slot
		case g.chance(4):
			i := g.rng.IntN(len(next))
			fresh := g.service(next)
			fresh.Name, fresh.Slot = next[i].Name, next[i].Slot
			next[i] = fresh
		default:
			i := g.rng.IntN(len(next))
			next[i] = g.otherEndpoints(next[i])
		}
	}
	st := Step{Services: next}
	if g.chance(6) {
		st.event = pick(g, restarted, cancelled, resynced)
	}
	return st
}

// service returns a random service whose addresses differ from the others'.
func (g *Generator) service(others []cluster.Service) cluster.Service {
	g.names++
	s := cluster.Service{Name: fmt.Sprintf("svc-%d", g.names), Slot: 1}
	for slices.ContainsFunc(others, func(o cluster.Service) bool { return o.Slot == s.Slot }) {
		s.Slot++
	}
	s.NodePort, s.ExternalIP, s.VIP = g.chance(2), g.chance(2), g.chance(2)
	s.ExternalLocal, s.InternalLocal = g.chance(3), g.chance(4)
	switch {
	case g.chance(8):
		s.Families = []model.Family{model.IPv4}
	case g.chance(8):
		s.Families = []model.Family{model.IPv6}
	}
	if !g.factory.LacksFeature(backend.SourceRanges) && g.chance(3) {
		s.Ranges = []cluster.SourceRange{pick(g, cluster.SourceRange{Host: network.Client},
			cluster.SourceRange{Host: network.TheNode},
			cluster.SourceRange{Pods: true},
			cluster.SourceRange{Host: network.RemotePod3}, cluster.SourceRange{Host: network.Client2, Only: model.IPv6})}
		if g.chance(2) {
			s.Ranges = append(s.Ranges, cluster.SourceRange{Host: network.Client2})
		}
	}
	if !g.factory.LacksFeature(backend.SessionAffinity) && g.chance(4) {
		s.Affinity = 3 * time.Hour
	}
	if g.Contests {
		s.ContestsExternalIP, s.ContestsVIP, s.ListsNode = g.chance(4), g.chance(4), g.chance(8)
	}
	protocols := []model.Protocol{model.TCP, model.UDP}
	if !g.factory.LacksFeature(backend.SCTP) {
		protocols = append(protocols, model.SCTP)
	}
	for _, number := range []uint16{80, 81} {
		for _, protocol := range protocols {
			if g.chance(3) || len(s.Ports) == 0 && g.chance(2) {
				s.Ports = append(s.Ports,
					cluster.ServicePort{Name: fmt.Sprintf("p%d", len(s.Ports)), Protocol: protocol, Number: number,
						Target: pick(g, network.ServerPorts()...)})
			}
		}
	}
	if len(s.Ports) == 0 {
		s.Ports = []cluster.ServicePort{{Name: "p0", Protocol: model.TCP, Number: 80, Target: network.ServerPort}}
	}
	return g.otherEndpoints(s)
}

// otherEndpoints gives a service random endpoints.
func (g *Generator) otherEndpoints(s cluster.Service) cluster.Service {
	s.Endpoints = g.endpoints()
	s.Ports = slices.Clone(s.Ports)
	for i := range s.Ports {
		s.Ports[i].Endpoints = nil
		if g.chance(5) {
			s.Ports[i].Endpoints = g.endpoints()
		}
	}
	return s
}

func (g *Generator) endpoints() []cluster.Endpoint {
	eps := []cluster.Endpoint{}
	if g.chance(6) {
		return eps
	}
	for _, host := range []string{network.LocalPod1, network.LocalPod2, network.LocalPod3, network.RemotePod1,
		network.RemotePod2} {
		if g.chance(2) {
			continue
		}
		e := cluster.Endpoint{At: host, Elsewhere: g.chance(6)}
		if g.chance(8) {
			e.Target = pick(g, network.ServerPorts()...)
		}
		switch {
		case g.chance(6):
			e.Phase = cluster.Terminating
		case g.chance(6):
			e.Phase = cluster.Unready
		}
		eps = append(eps, e)
	}
	return eps
}

// Trial is a random connection: to the port of a service with that name, in one family.
type Trial struct {
	Service cluster.Service
	from    string
	To      cluster.Destination
	port    string
	family  model.Family
}

// Attempts returns the connection, or nothing if the service or the backend has no such traffic.
func (tr Trial) Attempts(families []model.Family, protocols []model.Protocol) []network.Attempt {
	svc := tr.Service.WithDefaults(0)
	i := slices.IndexFunc(svc.Ports, func(p cluster.ServicePort) bool { return p.Name == tr.port })
	if !slices.Contains(families, tr.family) || !slices.Contains(svc.Families, tr.family) ||
		!slices.Contains(protocols, svc.Ports[i].Protocol) {
		return nil
	}
	return []network.Attempt{svc.Flow(network.HostNamed(tr.from), tr.To, i, tr.family)}
}

// TrialsOf returns random connections to the services of a state and of the previous one.
func (g *Generator) TrialsOf(services, before []cluster.Service, n int) []Trial {
	var list []Trial
	for range n {
		all := slices.Concat(services, services, before)
		if len(all) == 0 {
			return nil
		}
		svc := pick(g, all...)
		tr := Trial{
			Service: svc,
			from: pick(g, network.LocalPod1, network.LocalPod2, network.LocalPod3, network.TheNode, network.RemotePod3,
				network.ThirdNode, network.Client, network.Client2),
			To: pick(g, cluster.ToClusterIP, cluster.ToClusterIP, cluster.ToExternalIP, cluster.ToVIP, cluster.ToNodePort,
				cluster.ToExternalIP, cluster.ToVIP, cluster.ToNodePort,
				cluster.ToOtherNodePort, cluster.ToUnknownPort, cluster.ToUnallocatedAddress),
			port:   pick(g, svc.WithDefaults(0).Ports...).Name,
			family: pick(g, g.factory.Families()...),
		}
		switch {
		case (svc.ContestsExternalIP || svc.ContestsVIP) && g.chance(2):
			tr.To = cluster.ToContestedAddress
		case svc.ListsNode && g.chance(2):
			tr.To = cluster.ToListedNode
		}
		list = append(list, tr)
	}
	return list
}
