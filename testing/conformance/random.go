package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// flowsPerWave is the number of flows tried in each state of a random test.
const flowsPerWave = 48

// script is a sequence of events that a random test executes and can reproduce.
type script struct {
	setup setup
	steps []scriptStep
}

// scriptStep is a wave and the event that accompanies it.
type scriptStep struct {
	event    event
	services []service
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
func (sc script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "detector of local pods: %v; node ports: %v; masquerade all: %t\n", sc.setup.detector,
		sc.setup.nodePorts, sc.setup.masqueradeAll)
	for i, st := range sc.steps {
		fmt.Fprintf(&b, "wave %d", i+1)
		if st.event != nothing {
			fmt.Fprintf(&b, " (%v)", st.event)
		}
		b.WriteString(":\n")
		for _, svc := range st.services {
			fmt.Fprintf(&b, "  %v\n", svc)
		}
	}
	return b.String()
}

// String returns the service on one line, without default values.
func (s service) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	flag := func(set bool, name string) {
		if set {
			parts = append(parts, name)
		}
	}
	add("%s (slot %d", s.name, s.slot)
	if s.families != nil {
		add("%v", s.families)
	}
	flag(s.nodePort, "node port")
	flag(s.externalIP, "external IP")
	flag(s.vip, "VIP")
	flag(s.contestsExternalIP, "contested external IP")
	flag(s.contestsVIP, "contested VIP")
	flag(s.listsNode, "the node as external IP")
	flag(s.externalLocal, "external Local")
	flag(s.internalLocal, "internal Local")
	if s.affinity > 0 {
		add("affinity %v", s.affinity)
	}
	for _, r := range s.ranges {
		add("range of %v", r)
	}
	text := strings.Join(parts, ", ") + ")"
	for _, p := range s.ports {
		text += fmt.Sprintf(" %s %d/%v->%d", p.name, p.number, p.protocol, p.target)
		if p.endpoints != nil {
			text += endpointsText(p.endpoints)
		}
	}
	return text + endpointsText(s.endpoints)
}

func endpointsText(eps []endpoint) string {
	var parts []string
	for _, e := range eps {
		text := e.at
		if e.target != 0 {
			text += fmt.Sprintf(":%d", e.target)
		}
		text += []string{"", " terminating", " unready"}[e.phase]
		if e.elsewhere {
			text += " hinted elsewhere"
		}
		parts = append(parts, text)
	}
	return " [" + strings.Join(parts, ", ") + "]"
}

// generator makes random scripts. The same seed and features produce the same script.
type generator struct {
	rng     *rand.Rand
	factory Factory
	names   int // number of services so far
	// contests allows several services to list the contested address and the node's address.
	contests bool
}

func newGenerator(seed uint64, f Factory) *generator {
	return &generator{rng: rand.New(rand.NewPCG(seed, 0)), factory: f}
}

// chance is true with probability 1/n.
func (g *generator) chance(n int) bool { return g.rng.IntN(n) == 0 }

func pick[T any](g *generator, list ...T) T { return list[g.rng.IntN(len(list))] }

// The number of waves of an episode, which begins with a fresh backend.
const episodeLength = 10

// setup returns a random setup that the backend supports.
func (g *generator) setup() setup {
	s := setup{detector: pick(g, byNodeCIDR, byNodeCIDR, byClusterCIDR, undetected, byBridge, byInterface)}
	if s.detector == byBridge && g.factory.waives(bridgeCase) ||
		s.detector == byInterface && g.factory.waives(interfaceCase) {
		s.detector = byNodeCIDR
	}
	s.nodePorts = pick(g, onNodeIPs, onNodeIPs, onAllAddresses, onOtherIPv4Only, onPrimaryAndOtherIPv4)
	if g.factory.lacks(NodePortAddresses) {
		s.nodePorts = onAllAddresses
	}
	s.masqueradeAll = g.chance(6)
	return s
}

const maxServices = 6

// mostPorts is the maximum number of ports of a service: two for each protocol.
const mostPorts = 6

// next returns a random successor of a state.
func (g *generator) next(services []service) scriptStep {
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
			next[i].slot, next[j].slot = next[j].slot, next[i].slot
		case g.chance(4):
			i := g.rng.IntN(len(next))
			fresh := g.service(next)
			fresh.name, fresh.slot = next[i].name, next[i].slot
			next[i] = fresh
		default:
			i := g.rng.IntN(len(next))
			next[i] = g.otherEndpoints(next[i])
		}
	}
	st := scriptStep{services: next}
	if g.chance(6) {
		st.event = pick(g, restarted, cancelled, resynced)
	}
	return st
}

// service returns a random service whose addresses differ from the others'.
func (g *generator) service(others []service) service {
	g.names++
	s := service{name: fmt.Sprintf("svc-%d", g.names), slot: 1}
	for slices.ContainsFunc(others, func(o service) bool { return o.slot == s.slot }) {
		s.slot++
	}
	s.nodePort, s.externalIP, s.vip = g.chance(2), g.chance(2), g.chance(2)
	s.externalLocal, s.internalLocal = g.chance(3), g.chance(4)
	switch {
	case g.chance(8):
		s.families = []model.Family{model.IPv4}
	case g.chance(8):
		s.families = []model.Family{model.IPv6}
	}
	if !g.factory.lacks(SourceRanges) && g.chance(3) {
		s.ranges = []sourceRange{pick(g, sourceRange{place: client}, sourceRange{place: theNode},
			sourceRange{pods: true},
			sourceRange{place: remotePod3}, sourceRange{place: client2, only: model.IPv6})}
		if g.chance(2) {
			s.ranges = append(s.ranges, sourceRange{place: client2})
		}
	}
	if !g.factory.lacks(SessionAffinity) && g.chance(4) {
		s.affinity = 3 * time.Hour
	}
	if g.contests {
		s.contestsExternalIP, s.contestsVIP, s.listsNode = g.chance(4), g.chance(4), g.chance(8)
	}
	protocols := []model.Protocol{model.TCP, model.UDP}
	if !g.factory.lacks(SCTP) {
		protocols = append(protocols, model.SCTP)
	}
	for _, number := range []uint16{80, 81} {
		for _, protocol := range protocols {
			if g.chance(3) || len(s.ports) == 0 && g.chance(2) {
				s.ports = append(s.ports,
					servicePort{name: fmt.Sprintf("p%d", len(s.ports)), protocol: protocol, number: number,
						target: pick(g, network.ServerPorts()...)})
			}
		}
	}
	if len(s.ports) == 0 {
		s.ports = []servicePort{{name: "p0", protocol: model.TCP, number: 80, target: serverPort}}
	}
	return g.otherEndpoints(s)
}

// otherEndpoints gives a service random endpoints.
func (g *generator) otherEndpoints(s service) service {
	s.endpoints = g.endpoints()
	s.ports = slices.Clone(s.ports)
	for i := range s.ports {
		s.ports[i].endpoints = nil
		if g.chance(5) {
			s.ports[i].endpoints = g.endpoints()
		}
	}
	return s
}

func (g *generator) endpoints() []endpoint {
	eps := []endpoint{}
	if g.chance(6) {
		return eps
	}
	for _, place := range []string{localPod1, localPod2, localPod3, remotePod1, remotePod2} {
		if g.chance(2) {
			continue
		}
		e := endpoint{at: place, elsewhere: g.chance(6)}
		if g.chance(8) {
			e.target = pick(g, network.ServerPorts()...)
		}
		switch {
		case g.chance(6):
			e.phase = terminating
		case g.chance(6):
			e.phase = unready
		}
		eps = append(eps, e)
	}
	return eps
}

// trafficTo returns random traffic to the services of a state and of the previous one.
func (g *generator) trafficTo(services, before []service, flows int) []traffic {
	var list []traffic
	for range flows {
		all := slices.Concat(services, services, before)
		if len(all) == 0 {
			return nil
		}
		svc := pick(g, all...)
		tr := traffic{
			as:   &svc,
			from: []string{pick(g, localPod1, localPod2, localPod3, theNode, remotePod3, thirdNode, client, client2)},
			to: []destination{pick(g, toClusterIP, toClusterIP, toExternalIP, toVIP, toNodePort, toExternalIP, toVIP,
				toNodePort,
				toOtherNodePort, toUnknownPort, toUnallocatedAddress)},
			ports: []string{pick(g, svc.withDefaults(0).ports...).name},
			only:  pick(g, g.factory.families()...),
		}
		switch {
		case (svc.contestsExternalIP || svc.contestsVIP) && g.chance(2):
			tr.to = []destination{toContestedAddress}
		case svc.listsNode && g.chance(2):
			tr.to = []destination{toListedNode}
		}
		list = append(list, tr)
	}
	return list
}
