package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// network is a client, a node that forwards, and a host that has the addresses of all endpoints, as namespaces.
type network struct{ client, node, servers *testkit.Namespace }

const soakEndpoints = 4

func soakAddr(f model.Family, v4, v6 string) netip.Addr {
	if f == model.IPv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

func serverAddr(f model.Family, i int) netip.Addr {
	return soakAddr(f, fmt.Sprintf("10.2.0.%d", 11+i), fmt.Sprintf("fd02::%d", 11+i))
}
func vip(f model.Family) netip.Addr         { return soakAddr(f, "10.96.0.10", "fd96::10") }
func nodeAddr(f model.Family) netip.Addr    { return soakAddr(f, "10.1.0.1", "fd01::1") }
func clientAddr(f model.Family) netip.Addr  { return soakAddr(f, "10.1.0.2", "fd01::2") }
func gatewayAddr(f model.Family) netip.Addr { return soakAddr(f, "10.2.0.1", "fd02::1") }

func newNetwork(t *testing.T) *network {
	n := &network{client: testkit.NewNamespace(t), node: testkit.NewNamespace(t), servers: testkit.NewNamespace(t)}
	join := func(outer *testkit.Namespace, name string, outerAddrs func(model.Family) []netip.Addr,
		nodeAddr func(model.Family) netip.Addr) {
		n.node.Do(func() error {
			veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(),
				PeerName: "eth0", PeerNamespace: netlink.NsFd(outer.FD())}
			veth.Name = name
			return netlink.LinkAdd(veth)
		})
		up := func(name string, addrs func(model.Family) []netip.Addr,
			gateway func(model.Family) netip.Addr) func() error {
			return func() error {
				link, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				if err := netlink.LinkSetUp(link); err != nil {
					return err
				}
				for _, f := range model.Families() {
					bits := map[model.Family]int{model.IPv4: 24, model.IPv6: 64}[f]
					for _, a := range addrs(f) {
						ipnet := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
						if err := netlink.AddrAdd(link,
							&netlink.Addr{IPNet: ipnet, Flags: 0x02 /* IFA_F_NODAD */}); err != nil {
							return fmt.Errorf("%v: %w", a, err)
						}
					}
					if gateway != nil {
						if err := netlink.RouteAdd(
							&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway(f).AsSlice()}); err != nil {
							return err
						}
					}
				}
				return nil
			}
		}
		n.node.Do(up(name, func(f model.Family) []netip.Addr { return []netip.Addr{nodeAddr(f)} }, nil))
		outer.Do(up("eth0", outerAddrs, nodeAddr))
	}
	n.node.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0)
	})
	join(n.client, "client", func(f model.Family) []netip.Addr { return []netip.Addr{clientAddr(f)} }, nodeAddr)
	join(n.servers, "servers", func(f model.Family) []netip.Addr {
		var list []netip.Addr
		for i := range soakEndpoints {
			list = append(list, serverAddr(f, i))
		}
		return list
	}, gatewayAddr)
	return n
}

// nftBackend is as little of a backend as it takes: it rewrites the destination of what is sent to UDP services.
func nftBackend(t *testing.T, ns *testkit.Namespace) *sink.FullState {
	nft := need.Program(t, "nft")
	return sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		var script strings.Builder
		for _, f := range model.Families() {
			family := map[model.Family]string{model.IPv4: "ip", model.IPv6: "ip6"}[f]
			fmt.Fprintf(&script, "table %s kpl\ndelete table %s kpl\ntable %s kpl {\n chain services {\n  type nat "+
				"hook prerouting priority dstnat;\n", family, family, family)
			for e := range s.Services() {
				for _, p := range e.Service.Ports {
					targets := slices.Collect(e.SetEndpoints(p.Name, p.Protocol, f, model.ClusterSet))
					if len(targets) == 0 {
						continue
					}
					var elements []string
					for i, ep := range targets {
						elements = append(elements, fmt.Sprintf("%d : %v . %d", i, ep.Target.Addr(), ep.Target.Port()))
					}
					to := fmt.Sprintf("dnat to numgen random mod %d map { %s }", len(elements),
						strings.Join(elements, ", "))
					fmt.Fprintf(&script, "  %s daddr %v udp dport %d %s\n", family, e.Service.ClusterIP(f), p.Port, to)
					fmt.Fprintf(&script, "  fib daddr type local udp dport %d %s\n", p.NodePort, to)
				}
			}
			script.WriteString(" }\n}\n")
		}
		ns.Do(func() error {
			cmd := exec.Command(nft, "-f", "-")
			cmd.Stdin = strings.NewReader(script.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s\n%s", err, out, script.String())
			}
			return nil
		})
		return nil
	})
}

// arrivals judges where datagrams arrive.
type arrivals struct {
	mu sync.Mutex
	// alive[k] tells which endpoints are alive in wave k.
	alive []map[int]bool
	// latest is, for every flow, the latest wave of which a datagram arrived.
	latest []int
	wrong  []string
	news   chan struct{}
}

// arrived takes a datagram that was sent when wave k was applied and the next one perhaps on its way: it must be at an
// endpoint that is alive in one of them. Nothing arrives in a wave without endpoints, so nobody waits for it to: the
// datagram may then be on its way until the wave after that one.
func (a *arrivals) arrived(flow, wave, endpoint int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := wave + 1
	for next < len(a.alive)-1 && len(a.alive[next]) == 0 {
		next++
	}
	if !a.alive[wave][endpoint] && !(next < len(a.alive) && a.alive[next][endpoint]) {
		a.wrong = append(a.wrong, fmt.Sprintf("flow %d, sent in wave %d, is at endpoint %d", flow, wave, endpoint))
	}
	if wave > a.latest[flow] {
		a.latest[flow] = wave
		select {
		case a.news <- struct{}{}:
		default:
		}
	}
}

// waitFor waits until every flow has got through in a wave.
func (a *arrivals) waitFor(t *testing.T, wave int) {
	t.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		a.mu.Lock()
		late := slices.IndexFunc(a.latest, func(latest int) bool { return latest < wave })
		wrong := slices.Clone(a.wrong)
		a.mu.Unlock()
		require.Empty(t, wrong)
		if late < 0 {
			return
		}
		select {
		case <-a.news:
		case <-deadline:
			t.Fatalf("nothing of flow %d arrives in wave %d", late, wave)
		}
	}
}

// Endpoints come and go while clients send without a pause, from sockets that never change. No datagram that is sent
// after a wave is applied, and cleaned up after, arrives at an endpoint that is dead in it; and every flow gets
// through.
func TestSoakNoDatagramGoesToADeadEndpoint(t *testing.T) {
	need.Root(t)
	need.Program(t, "nft")
	t.Parallel() // most of the time it waits for nft
	n := newNetwork(t)
	random := rand.New(rand.NewSource(1))
	const nodePort = 30053
	waves := 20 // each kind comes twice
	if need.IsDeep() {
		waves = 40
	}
	// The wave that is applied. Whoever sends holds the lock, so that nothing is under way of the wave before the last
	// one.
	var wave uint32
	var sending sync.RWMutex
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	var closers []func() error
	defer func() {
		cancel()
		for _, c := range closers {
			_ = c()
		}
		running.Wait()
	}()
	a := &arrivals{alive: []map[int]bool{{}}, news: make(chan struct{}, 1)}

	for _, f := range model.Families() {
		for i := range soakEndpoints {
			var conn *net.UDPConn
			n.servers.Do(func() (err error) {
				conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(serverAddr(f, i), 5353)))
				return err
			})
			closers = append(closers, conn.Close)
			running.Go(func() {
				var buf [5]byte
				for {
					size, err := conn.Read(buf[:])
					if err != nil {
						return
					}
					if size == len(buf) {
						a.arrived(int(buf[0]), int(binary.BigEndian.Uint32(buf[1:])), i)
					}
				}
			})
		}
		for _, to := range []netip.AddrPort{netip.AddrPortFrom(vip(f), 53), netip.AddrPortFrom(nodeAddr(f), nodePort)} {
			for range 3 {
				var conn *net.UDPConn
				n.client.Do(func() (err error) {
					conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
					return err
				})
				closers = append(closers, conn.Close)
				flow := len(a.latest)
				a.latest = append(a.latest, 0)
				running.Go(func() {
					pace := time.NewTicker(200 * time.Microsecond)
					defer pace.Stop()
					for ctx.Err() == nil {
						buf := append([]byte{byte(flow)}, 0, 0, 0, 0)
						sending.RLock()
						binary.BigEndian.PutUint32(buf[1:], wave)
						_, _ = conn.Write(buf) // refused while there is no endpoint
						sending.RUnlock()
						<-pace.C
					}
				})
			}
		}
	}

	r := Wrap(t.Context(), nftBackend(t, n.node), Options{Table: &Kernel{NetNS: n.node.FD()}})
	var before []*sink.ServiceEntry
	for k := 1; k <= waves; k++ {
		alive := map[int]bool{}
		for len(alive) == 0 || len(alive) < soakEndpoints && random.Intn(2) == 0 {
			alive[random.Intn(soakEndpoints)] = true
		}
		var after []*sink.ServiceEntry
		switch k % 10 {
		case 4: // no endpoint
			alive = map[int]bool{}
			after = []*sink.ServiceEntry{soakService(t, nodePort, alive)}
		case 7: // no service
			alive = map[int]bool{}
		default:
			after = []*sink.ServiceEntry{soakService(t, nodePort, alive)}
		}
		a.mu.Lock()
		a.alive = append(a.alive, alive)
		a.mu.Unlock()
		describe(r, before, after)
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		sending.Lock()
		wave = uint32(k)
		sending.Unlock()
		if len(alive) > 0 {
			a.waitFor(t, k)
		}
		before = after
	}
}

func soakService(t *testing.T, nodePort uint16, alive map[int]bool) *sink.ServiceEntry {
	service, err := model.NewService(model.Service{
		Name:       model.ServiceName{Namespace: "default", Name: "dns"},
		ClusterIPs: []netip.Addr{vip(model.IPv4), vip(model.IPv6)},
		Ports:      []model.ServicePort{{Protocol: model.UDP, Port: 53, NodePort: nodePort}},
	})
	require.NoError(t, err)
	e := &sink.ServiceEntry{Service: service}
	for _, f := range model.Families() {
		for i := range soakEndpoints {
			if alive[i] {
				e.Endpoints = append(e.Endpoints, &model.Endpoint{
					Port: service.PortName(service.Ports[0]), Target: netip.AddrPortFrom(serverAddr(f, i), 5353),
					Sets: model.ClusterSet, Ready: true, Serving: true,
				})
			}
		}
	}
	return e
}
