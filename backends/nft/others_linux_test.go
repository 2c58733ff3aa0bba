package nft_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// router is a node between a client and a server, with the backend on it, and other programs whose rules are to be left
// alone.
type router struct {
	t              *testing.T
	client, server *testkit.Namespace
	node           *rig
}

const (
	roadClient, roadNode, roadServer = "192.0.2.2", "198.51.100.1", "198.51.100.2"
	serverPort                       = "8080"
)

func newRouter(t *testing.T) *router {
	here := testkit.EnterNamespace(t)
	r := &router{t: t, client: testkit.NewNamespace(t), server: testkit.NewNamespace(t)}
	check := func(err error) {
		t.Helper()
		require.NoError(t, err)
	}
	up := func(name, addr string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		return errors.Join(err, netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
	}
	for _, end := range []struct {
		ns                *testkit.Namespace
		name, near, there string
	}{
		{r.client, "client", "192.0.2.1/24", roadClient + "/24"},
		{r.server, "server", roadNode + "/24", roadServer + "/24"},
	} {
		// Made over there, with the other end here.
		end.ns.Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: end.name,
				PeerNamespace: netlink.NsFd(here)})
		})
		check(up(end.name, end.near))
		end.ns.Do(func() error {
			gateway, _, _ := strings.Cut(end.near, "/")
			return errors.Join(up("uplink", end.there), netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}))
		})
	}
	check(netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(roadServer)})) // where the node would send service addresses
	check(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	r.server.Do(func() error { return echo(t, roadServer+":"+serverPort) })
	r.node = newKernelRig(t, nft.Options{}, true)
	r.node.Set(fm.Node("n1").IP(roadNode).ServiceCIDR("10.96.0.0/12").Build(),
		fm.Service("default/web").ClusterIP("10.96.0.10").UDPPort("web", 80).MasqueradeAll().Build(),
		fm.Endpoint("default/web:web/UDP", roadServer+":"+serverPort).Build())
	r.node.Sync()
	return r
}

// echo answers with the address that the question came from.
func echo(t *testing.T, at string) error {
	c, err := net.ListenPacket("udp4", at)
	if err != nil {
		return err
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 16)
		for {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = c.WriteTo([]byte(host), from)
		}
	}()
	return nil
}

// nft adds the rules of another program.
func (r *router) nft(text string) {
	r.t.Helper()
	r.command("nft", text)
}

// command runs a program and returns its output.
func (r *router) command(program string, args ...string) string {
	r.t.Helper()
	out, err := exec.CommandContext(r.t.Context(), need.Program(r.t, program), args...).CombinedOutput()
	require.NoError(r.t, err, "%s", out)
	return string(out)
}

// ask returns what a question from a namespace is answered with: the source that was seen, "refused", or "nothing".
func ask(t *testing.T, from *testkit.Namespace, to string, timeout time.Duration) (answer string) {
	t.Helper()
	from.Do(func() (err error) {
		answer, err = askFromHere(to, timeout)
		return err
	})
	return answer
}

// askFromHere is ask from the namespace of the thread.
func askFromHere(to string, timeout time.Duration) (string, error) {
	c, err := net.Dial("udp4", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused", nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "nothing", nil
	}
	return string(buf[:n]), err
}

func (r *router) answer(to string) string {
	r.t.Helper()
	return ask(r.t, r.client, to, time.Minute)
}

func TestServiceAddressesThatOthersServeAreLeftToThem(t *testing.T) {
	r := newRouter(t)
	require.Equal(t, roadNode, r.answer("10.96.0.10:80"), "the service")
	assert.Equal(t, "refused", r.answer("10.96.0.10:99"), "a port that it does not have")
	assert.Equal(t, "nothing", ask(t, r.client, "10.96.9.9:80", 100*time.Millisecond), "an address that nobody has")

	r.nft(`table ip another-proxy { chain pre { type nat hook prerouting priority dstnat + 5;
		ip daddr { 10.96.9.9, 10.96.0.10 } udp dport { 80, 99 } dnat to ` + roadServer + ":" + serverPort + `;
	}; }`)
	assert.Equal(t, roadClient, r.answer("10.96.9.9:80"), "another proxy has the address")
	assert.Equal(t, roadClient, r.answer("10.96.0.10:99"), "another proxy has the port")

	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	bound := netip.MustParsePrefix("10.96.7.7/32")
	ipNet := &net.IPNet{IP: bound.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}
	require.NoError(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet}))
	require.NoError(t, echo(t, "10.96.7.7:53"))
	assert.Equal(t, roadClient, r.answer("10.96.7.7:53"), "the node has the address")
}

// A DNS cache on the node that has the cluster IP of the cluster's DNS, with the rules of NodeLocal DNSCache: its
// traffic is not tracked, so that no proxy translates it. In docs/tested.md.
func TestADNSCacheOnTheNodeKeepsTheClusterIPOfDNS(t *testing.T) {
	r := newRouter(t)
	r.node.Set(fm.Service("kube-system/kube-dns").ClusterIP("10.96.0.53").UDPPort("dns", 53).MasqueradeAll().Build(),
		fm.Endpoint("kube-system/kube-dns:dns/UDP", roadServer+":"+serverPort).Build())
	r.node.Sync()
	require.Equal(t, roadNode, r.answer("10.96.0.53:53"), "the service, whose endpoint sees the node")

	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	require.NoError(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 96, 0, 53),
		Mask: net.CIDRMask(32, 32)}}))
	require.NoError(t, echo(t, "10.96.0.53:53"))
	r.nft(`table ip node-cache {
		chain pre { type filter hook prerouting priority raw; ip daddr 10.96.0.53 udp dport 53 notrack; };
		chain out { type filter hook output priority raw; ip daddr 10.96.0.53 udp dport 53 notrack;
			ip saddr 10.96.0.53 udp sport 53 notrack; }; }`)
	for _, when := range []string{"at once", "after a resync"} {
		assert.Equal(t, roadClient, r.answer("10.96.0.53:53"), "%s: the cache, which sees the client", when)
		answer, err := askFromHere("10.96.0.53:53", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, "10.96.0.53", answer, "%s: the cache, asked from the node", when)
		assert.Equal(t, "refused", r.answer("10.96.0.53:99"), "%s: a port that neither has", when)
		r.node.backend.ForceResync()
		r.node.Sync()
	}
}

// The interface that local pods are behind goes, comes and is renamed, as others set up a host's network. Rules that
// name an interface must not need it, and hold for the name.
func TestTheBridgeOfThePodsIsRenamed(t *testing.T) {
	r := newRouter(t)
	rename := func(from, to string) {
		link, err := netlink.LinkByName(from)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetName(link, to))
	}
	r.node.Set(fm.Node("n1").IP(roadNode).LocalPods(model.LocalPods{Bridge: "pods"}).Build(),
		fm.Service("default/web").ClusterIP("10.96.0.10").UDPPort("web", 80).DetectsLocalPods().Build())
	r.node.Sync()
	assert.Equal(t, roadNode, r.answer("10.96.0.10:80"), "no interface has the name")
	rename("client", "pods")
	assert.Equal(t, roadClient, r.answer("10.96.0.10:80"), "the client is behind the bridge, and so a pod of this node")
	rename("pods", "other")
	assert.Equal(t, roadNode, r.answer("10.96.0.10:80"), "the bridge has another name")
	r.node.backend.ForceResync()
	r.node.Sync()
	rename("other", "pods")
	assert.Equal(t, roadClient, r.answer("10.96.0.10:80"), "and its name again")
}

// Of chains of one priority the kernel runs the one first that was registered last. What other programs have at dstnat
// and srcnat sees no connection to a service, whoever was first (S67).
func TestOrderOfRegistrationDecidesNothing(t *testing.T) {
	const counted = `table ip plugin {
		chain pre { type nat hook prerouting priority dstnat; udp dport 80 counter ct mark set 0x80; };
		chain post { type nat hook postrouting priority srcnat; udp dport 8080 counter masquerade; }; }`
	others := map[string]func(r *router) (packets func() string){
		"nftables": func(r *router) func() string {
			r.nft(counted)
			return func() string { return r.command("nft", "list", "table", "ip", "plugin") }
		},
		"iptables": func(r *router) func() string {
			for _, args := range []string{"-A PREROUTING -p udp --dport 80 -j CONNMARK --set-xmark 0x80/0x80",
				"-A POSTROUTING -p udp --dport 8080 -j MASQUERADE"} {
				r.command("iptables", append([]string{"-t", "nat"}, strings.Fields(args)...)...)
			}
			return func() string { return r.command("iptables-save", "-c", "-t", "nat") }
		},
	}
	again := func(r *router) {
		r.node.backend.ForceResync()
		r.node.Sync()
	}
	orders := map[string]func(r *router, add func(*router) func() string) func() string{
		"others last": func(r *router, add func(*router) func() string) func() string { return add(r) },
		"others first": func(r *router, add func(*router) func() string) func() string {
			require.NoError(t, nft.CleanUp(t.Context(), nft.Options{}))
			packets := add(r)
			again(r)
			return packets
		},
		"others first, after all rules were flushed": func(r *router, add func(*router) func() string) func() string {
			r.command("nft", "flush", "ruleset")
			packets := add(r)
			again(r)
			return packets
		},
	}
	for program, add := range others {
		for order, prepare := range orders {
			t.Run(program+", "+order, func(t *testing.T) {
				r := newRouter(t)
				r.node.repairs = false // it would be first
				r.node.Restart()
				packets := prepare(r, add)
				require.Equal(t, roadNode, r.answer("10.96.0.10:80"))
				for line := range strings.Lines(packets()) {
					if strings.Contains(line, "dport") {
						assert.Regexp(t, `counter packets 0 |^\[0:0\]`, line)
					}
				}
				assert.Equal(t, roadNode, r.answer(roadServer+":"+serverPort), "what is for no service, others translate")
			})
		}
	}
}

// A host port, with rules as the CNI plugin portmap makes them in nftables. In docs/tested.md.
func TestHostPortsWorkBeside(t *testing.T) {
	r := newRouter(t)
	r.nft(`table ip cni-hostport { chain hostports { udp dport 9090 dnat to ` + roadServer + ":" + serverPort + `; };
		chain pre { type nat hook prerouting priority dstnat; fib daddr type local jump hostports; };
		chain out { type nat hook output priority -100; fib daddr type local jump hostports; }; }`)
	for _, when := range []string{"at once", "after a resync"} {
		assert.Equal(t, roadClient, r.answer("192.0.2.1:9090"), "%s: the host port", when)
		answer, err := askFromHere(roadNode+":9090", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, roadNode, answer, "%s: the host port, from the node", when)
		assert.Equal(t, roadNode, r.answer("10.96.0.10:80"), "%s: the service", when)
		r.node.backend.ForceResync()
		r.node.Sync()
	}
	require.NoError(t, nft.CleanUp(t.Context(), nft.Options{}))
	assert.Equal(t, roadClient, r.answer("192.0.2.1:9090"), "the rules are the plugin's")
}

// Connections are checked within the service CIDRs only, as long as all cluster IPs are there.
func TestClusterIPsOutsideTheServiceCIDRsAreChecked(t *testing.T) {
	r := newRouter(t)
	elsewhere := fm.Service("default/elsewhere").ClusterIP("172.30.0.10").UDPPort("web", 80).MasqueradeAll().Build()
	inside := func(when string) {
		t.Helper()
		assert.Equal(t, "refused", r.answer("10.96.0.10:99"), "%s: a port that the service does not have", when)
		assert.Equal(t, "nothing", ask(t, r.client, "10.96.9.9:80", 100*time.Millisecond),
			"%s: an address that nobody has", when)
	}
	r.node.Set(elsewhere)
	r.node.Sync()
	assert.Equal(t, "refused", r.answer("172.30.0.10:99"))
	inside("with another cluster IP")
	r.node.Delete(elsewhere.Name)
	r.node.Sync()
	inside("without it")
}

func TestOnlyTranslatedConnectionsAreMasqueraded(t *testing.T) {
	r := newRouter(t)
	const wgQuick = "51820" // the mark of its packets, which has bit 14
	r.nft("table ip vpn { chain pre { type filter hook prerouting priority mangle; meta mark set " + wgQuick + "; }; }")
	assert.Equal(t, roadClient, r.answer(roadServer+":"+serverPort), "nobody asked for another source")
	assert.Equal(t, roadNode, r.answer("10.96.0.10:80"), "the service does")
}

func TestPortsOfOtherHostsThatAreNodePortsHereAreLeftToThem(t *testing.T) {
	r := newRouter(t)
	r.node.Set(fm.Service("default/idle").ClusterIP("10.96.0.11").UDPPort("web", 80).NodePort(8080).Build())
	for name, choice := range map[string]nodeaddr.Choice{
		"all addresses of the node":        {},
		"its primary address":              {Primary: true},
		"a range that the host is in, too": {CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
	} {
		r.node.options.NodePortAddresses = choice
		r.node.Restart()
		r.node.Sync()
		assert.Equal(t, "refused", r.answer(roadNode+":"+serverPort), "%s: the node port has no endpoint", name)
		assert.Equal(t, roadClient, r.answer(roadServer+":"+serverPort), "%s: the other host's port", name)
	}
}
