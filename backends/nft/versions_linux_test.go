package nft_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// nftOf is the nft of a release of Debian. testing/nft/fetch downloads them.
type nftOf struct {
	release string
	debian  string // as docs/nft.md calls the release
	// cannotLoad: it neither loads maps from one concatenation to another, nor numbers in keys.
	cannotLoad bool
	// json is part of the error of loading its own JSON; "": it loads it.
	json string
}

var everyNft = []nftOf{
	{release: "bullseye", debian: "11", cannotLoad: true, json: "Error:"},
	{release: "bookworm", debian: "12", json: "Invalid map type"},
	{release: "trixie", debian: "13"},
	{release: "sid", debian: "sid"},
}

// forEveryNft runs a subtest for each release.
func forEveryNft(t *testing.T, f func(t *testing.T, n nftOf)) {
	need.Root(t)
	for _, n := range everyNft {
		t.Run(n.release, func(t *testing.T) {
			_, err := os.Stat(filepath.Join(n.dir(t), "nft"))
			need.That(t, err == nil, "the nft of Debian "+n.release+" (try: testing/nft/fetch)")
			f(t, n)
		})
	}
}

func (n nftOf) dir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("KPL_NFT_CACHE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		require.NoError(t, err)
		dir = filepath.Join(cache, "kube-proxy-lib", "nft")
	}
	return filepath.Join(dir, n.release)
}

func (n nftOf) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(n.dir(t), "nft")
	return exec.CommandContext(t.Context(), program, args...)
}

// run returns what nft prints. It must not fail.
func (n nftOf) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	c := n.command(t, args...)
	c.Stdin, c.Stderr = strings.NewReader(stdin), &stderr
	out, err := c.Output()
	require.NoError(t, err, "nft %s of Debian %s: %.1000s", strings.Join(args, " "), n.release, &stderr)
	return string(out)
}

// everyService has services of every kind for each protocol, with endpoints.
func everyService() (values []any) {
	var longList []string
	for i := range 40 {
		longList = append(longList, fmt.Sprintf("203.0.%d.0/25", 2*i))
	}
	shortList := []string{"198.51.100.0/24", "203.0.113.7/32", "0.0.0.0/4", "2001:db8:1::/64"}
	kinds := []func(s *fm.ServiceBuilder, i int){
		func(*fm.ServiceBuilder, int) {},
		func(s *fm.ServiceBuilder, _ int) { s.NoEndpoints() },
		func(s *fm.ServiceBuilder, _ int) { s.InternalLocal() },
		func(s *fm.ServiceBuilder, _ int) { s.MasqueradeAll() },
		func(s *fm.ServiceBuilder, _ int) { s.Affinity(90 * time.Minute) },
		func(s *fm.ServiceBuilder, i int) { s.NodePort(uint16(30000 + i)) },
		func(s *fm.ServiceBuilder, i int) { s.NodePort(uint16(30000 + i)).ExternalLocal() },
		func(s *fm.ServiceBuilder, i int) { s.NodePort(uint16(30000 + i)).ExternalLocal().Affinity(time.Hour) },
		func(s *fm.ServiceBuilder, i int) { s.ExternalIP(external(i)...) },
		func(s *fm.ServiceBuilder, i int) { s.ExternalIP(external(i)...).ExternalLocal().InternalLocal() },
		func(s *fm.ServiceBuilder, i int) { s.LoadBalancerIP(external(i)...) },
		func(s *fm.ServiceBuilder, i int) { s.LoadBalancerIP(external(i)...).SourceRange(shortList...) },
		func(s *fm.ServiceBuilder, i int) {
			s.LoadBalancerIP(external(i)...).SourceRange(longList...).Affinity(time.Minute)
		},
		func(s *fm.ServiceBuilder, i int) {
			s.LoadBalancerIP(external(i)...).NodePort(uint16(30000 + i)).ExternalLocal().SourceRange(shortList...).NoEndpoints()
		},
	}
	add := func(protocol model.Protocol, i int, kind func(*fm.ServiceBuilder, int)) {
		name := fmt.Sprintf("ns-%v/service-%d", protocol, i)
		s := fm.Service(name).DetectsLocalPods().ClusterIP(fmt.Sprintf("10.96.1.%d", i), fmt.Sprintf("fd00:96::1:%x", i))
		switch protocol {
		case model.TCP:
			s.Port("web", 80)
		case model.UDP:
			s.UDPPort("web", 80)
		case model.SCTP:
			s.SCTPPort("web", 80)
		}
		kind(s, i)
		values = append(values, s.Build())
		port := fmt.Sprintf("%s:web/%v", name, protocol)
		for _, pods := range []string{"10.244.%d.%d:8080", "[fd00:244:%x::%x]:8080"} {
			values = append(values, fm.Endpoint(port, fmt.Sprintf(pods, 1, i)).Local().Build(),
				fm.Endpoint(port, fmt.Sprintf(pods, 2, i)).Build())
		}
	}
	i := 1
	for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		for _, kind := range kinds {
			add(protocol, i, kind)
			i++
		}
	}
	for range 17 { // beyond the 16th of their namespace they share a set of clients
		add(model.UDP, i, func(s *fm.ServiceBuilder, _ int) { s.Affinity(time.Hour) })
		i++
	}
	return values
}

// bigServices have slots by number, and endpoints in groups.
func bigServices() (values []any) {
	big := fm.Service("big/slots-by-number").DetectsLocalPods().ClusterIP("10.96.2.1", "fd00:96::2:1").SCTPPort("", 80)
	values = append(values, big.Build())
	for i := range 1100 {
		for _, pods := range []string{"10.245.%d.%d:80", "[fd00:245:%x::%x]:80"} {
			pod := fm.Endpoint("big/slots-by-number/SCTP", fmt.Sprintf(pods, i/256, i%256))
			values = append(values, pod.Build())
		}
	}
	values = append(values, fm.Service("big/groups").ClusterIP("10.96.2.2", "fd00:96::2:2").UDPPort("", 80).
		Affinity(time.Hour).Build())
	for i := range 300 {
		for _, pods := range []string{"10.245.%d.%d:80", "[fd00:245:%x::%x]:80"} {
			values = append(values, fm.Endpoint("big/groups/UDP", fmt.Sprintf(pods, i/256, i%256)).Build())
		}
	}
	return values
}

func external(i int) []string {
	return []string{fmt.Sprintf("192.0.3.%d", i), fmt.Sprintf("2001:db8:3::%x", i)}
}

// everyTable are backends with different options and nodes, each with its own tables, and clients that they know.
func everyTable(t *testing.T) []*rig {
	var rigs []*rig
	for _, table := range []struct {
		name  string
		pods  model.LocalPods
		ports nodeaddr.Choice
	}{
		{"", backendtest.Node().LocalPods, nodeaddr.Choice{Primary: true}},
		{"behind-a-bridge", model.LocalPods{Bridge: "cbr0"}, nodeaddr.Choice{}},
		{"by-interfaces", model.LocalPods{InterfacePrefix: "veth"},
			nodeaddr.Choice{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
				netip.MustParsePrefix("2001:db8::/33")}}},
	} {
		r := newKernelRig(t, nft.Options{TableName: table.name,
			Common: frontend.Common{NodePortAddresses: table.ports}}, false)
		node := *backendtest.Node()
		node.LocalPods = table.pods
		r.Set(append(everyService(), &node)...)
		if table.name == "" {
			r.Set(bigServices()...)
		}
		r.Sync()
		rigs = append(rigs, r)
	}
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	for _, ip := range backendtest.Node().IPs {
		ipNet := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
		require.NoError(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet, Flags: unix.IFA_F_NODAD}))
		everywhere := &net.IPNet{IP: make(net.IP, len(ipNet.IP)), Mask: make(net.IPMask, len(ipNet.Mask))}
		require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everywhere}))
	}
	for _, v := range everyService() {
		s, ok := v.(*model.Service)
		if !ok || s.SessionAffinityTimeout == 0 || s.Ports[0].Protocol != model.UDP {
			continue
		}
		for _, vip := range s.ClusterIPs {
			c, err := net.Dial("udp", netip.AddrPortFrom(vip, s.Ports[0].Port).String())
			require.NoError(t, err)
			_, err = c.Write([]byte("?"))
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
	}
	return rigs
}

// People look at rulesets, and other programs change theirs, with whatever nft the node or a container has. It reads
// all tables before it does anything: one that it cannot read is in the way of everybody.
func TestEveryNftReadsTheTables(t *testing.T) {
	forEveryNft(t, func(t *testing.T, n nftOf) {
		n.isInTheTable(t)
		testkit.EnterNamespace(t)
		rigs := everyTable(t)

		listed := n.run(t, "", "list", "ruleset")
		for _, v := range everyService() {
			if s, ok := v.(*model.Service); ok {
				want := fmt.Sprintf("comment %q", s.PortName(s.Ports[0]))
				assert.Contains(t, listed, want)
			}
		}
		assert.Regexp(t, `(?s)set affinity-.*expires.*set clients-.*expires.*`, listed, "clients")
		for _, args := range [][]string{{"list", "ruleset"}, {"list", "table", "ip6", "kube-proxy-lib"},
			{"list", "map", "ip", "kube-proxy-lib", "endpoints"}} {
			var objects struct{ Nftables []map[string]any }
			require.NoError(t, json.Unmarshal([]byte(n.run(t, "", append([]string{"-j"}, args...)...)), &objects), args)
			assert.NotEmpty(t, objects.Nftables, args)
		}
		for _, args := range []string{"list tables", "-a -n list ruleset", "list chain ip kube-proxy-lib nat-prerouting",
			"list map ip6 kube-proxy-lib service-ips",
			"get element ip kube-proxy-lib service-ips { 10.96.1.1 . tcp . 80 }"} {
			assert.NotEmpty(t, n.run(t, "", strings.Fields(args)...), args)
		}
		n.monitors(t, rigs[0])

		asJSON := n.run(t, "", "-j", "list", "ruleset")
		testkit.NewNamespace(t).Do(func() error {
			out, err := n.load(t, asJSON, "-j")
			assert.Equal(t, n.json == "", err == nil, "%.1000s", out)
			assert.Contains(t, out, n.json)
			return nil
		})
		saved := n.run(t, "", "-s", "list", "ruleset")
		testkit.NewNamespace(t).Do(func() error {
			if n.cannotLoad {
				out, err := n.load(t, saved)
				assert.Error(t, err)
				assert.Regexp(t, `datatype mismatch|variable sized data types`, out)
				return nil
			}
			n.run(t, saved, "-f", "-")
			assert.Equal(t, saved, n.run(t, "", "-s", "list", "ruleset"))
			return nil
		})
	})
}

// isInTheTable requires that docs/nft.md has the version, in the row of the release.
func (n nftOf) isInTheTable(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../../docs/nft.md")
	require.NoError(t, err)
	version := regexp.MustCompile(`v(\S+)`).FindStringSubmatch(n.run(t, "", "--version"))
	require.NotNil(t, version)
	loads := "no"
	if n.json == "" {
		loads = "yes"
	}
	row := fmt.Sprintf(`(?m)^\| %s \| %s \|.*\| %s[^|]*\|$`, regexp.QuoteMeta(version[1]), n.debian, loads)
	assert.Regexp(t, row, string(page), "the table in docs/nft.md")
}

// load loads a ruleset, and returns what nft prints.
func (n nftOf) load(t *testing.T, ruleset string, flags ...string) (string, error) {
	t.Helper()
	c := n.command(t, append(flags, "-f", "-")...)
	c.Stdin = strings.NewReader(ruleset)
	out, err := c.CombinedOutput()
	return string(out), err
}

// The tables of package ipvs are written with forms that every nft reads but the oldest, which crashes on typeof.
func TestEveryNftLoadsTheTablesOfIPVS(t *testing.T) {
	forEveryNft(t, func(t *testing.T, n nftOf) {
		for _, family := range []string{"ipv4", "ipv6"} {
			table, err := os.ReadFile("../ipvs/testdata/every-feature-" + family + ".nft")
			require.NoError(t, err)
			testkit.NewNamespace(t).Do(func() error {
				out, err := n.load(t, string(table))
				if n.cannotLoad {
					assert.Error(t, err)
					return nil
				}
				require.NoError(t, err, out)
				assert.Contains(t, n.run(t, "", "list", "ruleset"), "map service-ips")
				return nil
			})
		}
	})
}

// Whatever others write with their nft stays as it is, down to the handles of rules, which change if one is made anew.
func TestTablesOfEveryNftStay(t *testing.T) {
	forEveryNft(t, func(t *testing.T, n nftOf) {
		testkit.EnterNamespace(t)
		n.run(t, "", "-f", "testdata/others.nft")
		if !n.cannotLoad {
			n.run(t, "", "-f", "testdata/others-newer.nft")
		}
		want := n.run(t, "", "-a", "list", "ruleset")
		r := newKernelRig(t, nft.Options{}, false)
		others := func(when string) {
			t.Helper()
			var here []string
			for line := range strings.Lines(n.run(t, "", "list", "tables")) {
				if table := strings.Fields(line); table[2] != nft.DefaultTableName || table[1] == "inet" {
					here = append(here, n.run(t, "", append([]string{"-a", "list"}, table...)...))
				}
			}
			assert.Equal(t, want, strings.Join(here, ""), when)
		}
		r.Set(append(everyService(), backendtest.Node())...)
		r.Sync()
		others("after the first Sync")
		r.backend.ForceResync()
		r.Sync()
		others("after everything was compared")
		r.Restart()
		r.Set(backendtest.Node())
		r.Sync()
		others("after a restart without services")
		require.NoError(t, nft.CleanUp(t.Context(), nft.Options{}))
		assert.Equal(t, want, n.run(t, "", "-a", "list", "ruleset"), "after the clean-up")
	})
}

// monitors requires that "nft monitor" reports changes, and does not end.
func (n nftOf) monitors(t *testing.T, r *rig) {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	require.NoError(t, err)
	defer output.Close()
	monitor := n.command(t, "monitor")
	monitor.Stdout, monitor.Stderr = output, output
	before := listeners(t)
	require.NoError(t, monitor.Start())
	ended := make(chan error, 1)
	go func() { ended <- monitor.Wait() }()
	within := func(done func(text string) bool, what string) {
		t.Helper()
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			text, err := os.ReadFile(output.Name())
			require.NoError(t, err)
			require.Empty(t, ended, "nft monitor ended: %.1000s", text)
			if done(string(text)) {
				return
			}
			require.Less(t, time.Since(start), 20*time.Second, "%s: %.1000s", what, text)
		}
	}
	within(func(string) bool { return listeners(t) > before }, "it listens")
	sticky := fm.Service("late/sticky").ClusterIP("10.96.3.1", "fd00:96::3:1").Affinity(time.Minute).Build()
	r.Set(sticky, fm.Endpoint("late/sticky/TCP", "10.244.9.9:80").Build(),
		fm.Endpoint("late/sticky/TCP", "[fd00:244:9::9]:80").Build())
	r.Sync()
	r.Delete(sticky.Name)
	r.Sync()
	for _, element := range []string{
		"ip kube-proxy-lib endpoints { 10.96.3.1 ",
		"ip6 kube-proxy-lib endpoints { fd00:96::3:1 ",
	} {
		within(func(text string) bool { return strings.Contains(text, "delete element "+element) }, element)
	}
	require.NoError(t, monitor.Process.Kill())
	assert.ErrorContains(t, <-ended, "killed")
}

// listeners returns the number of sockets in the network namespace that listen for changes of nftables.
func listeners(t *testing.T) (n int) {
	sockets, err := os.ReadFile("/proc/thread-self/net/netlink")
	require.NoError(t, err)
	for line := range strings.Lines(string(sockets)) {
		f := strings.Fields(line) // sk, protocol, port, groups
		groups, err := strconv.ParseUint(f[3], 16, 32)
		if err == nil && f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) && groups&(1<<(unix.NFNLGRP_NFTABLES-1)) != 0 {
			n++
		}
	}
	return n
}
