package conntrack

import (
	"fmt"
	"math/rand"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// severalPorts is a service with many ports and many addresses; both fit into one object.
func severalPorts(t testing.TB, ports, addresses int) *model.Service {
	s := model.Service{
		Name:       model.ServiceName{Namespace: "default", Name: "several"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Created:    time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for i := range ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.UDP, Port: uint16(1 + i)})
	}
	for i := range addresses {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	checked, err := model.NewService(s)
	require.NoError(t, err)
	return checked
}

// What a service costs depends on its ports and its addresses, never on the product of both.
func TestAServiceWithManyPortsAndAddressesCostsTheirSum(t *testing.T) {
	allocated := func(ports, addresses int) uint64 {
		big, less := severalPorts(t, ports, addresses), severalPorts(t, ports-1, addresses-1)
		none := func(model.PortName) targets { return targets{} }
		x := newIndex()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		x.set(big.Name, udpServiceOf(big, model.IPv4), none, &pending{})
		x.set(big.Name, udpServiceOf(less, model.IPv4), none, &pending{})
		x.set(big.Name, udpServiceOf(big, model.IPv4), none, &pending{})
		x.set(big.Name, udpServiceOf(nil, model.IPv4), none, &pending{})
		runtime.ReadMemStats(&after)
		require.True(t, x.isGone(netip.AddrPortFrom(big.ExternalIPs[addresses-1], uint16(ports))))
		return after.TotalAlloc - before.TotalAlloc
	}
	const few, many = 20, 2000
	sum := allocated(few, many) + allocated(many, few)
	require.Less(t, allocated(many, many), 2*sum)
}

// destinations is an index that says for each address and port of each service who has it, as docs/node-services.md
// does.
type destinations struct {
	serving map[netip.AddrPort]map[netip.AddrPort]int // by destination and endpoint: how many ports
	gone    map[netip.AddrPort]bool
}

func (d *destinations) stale(f Flow) bool {
	if serving, claimed := d.serving[f.Destination]; claimed {
		return serving[f.ReplySource] == 0
	}
	return d.gone[f.Destination] && f.rewritten()
}

// However services with several ports and addresses, which may be those of others, come and go: the index says what a
// list of all their destinations says.
func TestStaleAsInAListOfAllDestinations(t *testing.T) {
	number := func(random *rand.Rand, of string, n int) string { return fmt.Sprint(of, random.Intn(n)) }
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(i)}) }
	endpoint := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 53)
	}
	for seed := range int64(200) {
		random := rand.New(rand.NewSource(seed))
		x := newIndex()
		state := map[model.ServiceName]*udpService{} // of its own, because the index keeps what it gets
		gone := map[netip.AddrPort]bool{}
		for step := range 40 {
			name := model.ServiceName{Namespace: "default", Name: number(random, "s", 4)}
			now := func() *udpService {
				again := rand.New(rand.NewSource(seed<<20 + int64(step)))
				s := &udpService{}
				if again.Intn(4) == 0 {
					return s
				}
				first := again.Intn(4)
				for i := range 1 + again.Intn(3) {
					p := &udpPort{service: s, number: uint16(50 + first + i), serving: targets{}}
					p.name = model.PortName{Service: name, Port: fmt.Sprint("p", i), Protocol: model.UDP}
					s.ports = append(s.ports, p)
				}
				for _, a := range again.Perm(5)[:1+again.Intn(4)] {
					s.addresses = append(s.addresses, address(a))
				}
				return s
			}
			if old := state[name]; old != nil {
				for _, p := range old.ports {
					for _, a := range old.addresses {
						gone[netip.AddrPortFrom(a, p.number)] = true
					}
				}
			}
			serving := map[model.PortName]targets{}
			ofPort := func(p model.PortName) targets {
				serving[p] = targets{endpoint(random.Intn(6)): {}, endpoint(random.Intn(6)): {}}
				return serving[p]
			}
			x.set(name, now(), ofPort, &pending{})
			state[name] = now()
			for _, p := range state[name].ports {
				p.serving = x.ports[p.name].serving
			}
			if random.Intn(10) == 0 {
				x.cleaned(x.revision)
				clear(gone)
			}

			list := &destinations{serving: map[netip.AddrPort]map[netip.AddrPort]int{}, gone: gone}
			for _, s := range state {
				for _, p := range s.ports {
					for _, a := range s.addresses {
						d := netip.AddrPortFrom(a, p.number)
						if list.serving[d] == nil {
							list.serving[d] = map[netip.AddrPort]int{}
						}
						for target := range p.serving {
							list.serving[d][target]++
						}
					}
				}
			}
			for a := range 5 {
				for port := uint16(50); port < 57; port++ {
					for e := range 7 {
						f := flowTo(model.IPv4, 4000, netip.AddrPortFrom(address(a), port), endpoint(e))
						if e == 6 {
							f = flowTo(model.IPv4, 4000, f.Destination, netip.AddrPort{})
						}
						require.Equal(t, list.stale(f), x.stale(f), "seed %d, step %d: %v", seed, step, f)
					}
				}
			}
		}
	}
}
