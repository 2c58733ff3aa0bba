package docs_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/hns"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	hnsdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	iptablesdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	ipvsdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nftdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// example is the service of docs/one-service.md: shop/web, with an endpoint on this node and one on another.
func example() []any {
	return []any{
		fm.Node("node-1").IP("192.0.2.10").ServiceCIDR("10.96.0.0/12").
			LocalPods(model.LocalPods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}).Build(),
		fm.Service("shop/web").DetectsLocalPods().ClusterIP("10.96.1.2").Port("http", 80).NodePort(30080).
			LoadBalancerIP("203.0.113.2").ExternalLocal().Build(),
		fm.Endpoint("shop/web:http/TCP", "10.244.1.8:8080").Local().Build(),
		fm.Endpoint("shop/web:http/TCP", "10.244.2.8:8080").Build(),
	}
}

// TestThePageShowsRealRules: what docs/one-service.md shows of a backend's rules is what the backend makes of the
// example, lines left out where the page has "...".
func TestThePageShowsRealRules(t *testing.T) {
	page, err := os.ReadFile("one-service.md")
	require.NoError(t, err)
	for _, backend := range []struct {
		name  string
		rules func(*testing.T) string
	}{
		{"shop-web.nft", nftRules},
		{"shop-web.save", iptablesRules},
		{"shop-web.ipvs", ipvsRules},
		{"shop-web.hns", hnsRules},
		{"shop-web.userspace", userspaceRules},
	} {
		t.Run(backend.name, func(t *testing.T) {
			path := filepath.Join("testdata", backend.name)
			fm.Golden(t, path, backend.rules(t))
			golden, err := os.ReadFile(path)
			require.NoError(t, err)
			_, after, found := strings.Cut(string(page), "("+path+")")
			require.True(t, found, "the page does not link to %s", path)
			_, after, _ = strings.Cut(after, "```text\n")
			quote, _, closed := strings.Cut(after, "```")
			require.True(t, closed)
			assertQuotes(t, quote, string(golden))
		})
	}
}

// assertQuotes: the lines of a quotation are lines of the text, in this order; between "..." they follow each other.
func assertQuotes(t *testing.T, quote, text string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	follows := false
	for line := range strings.Lines(quote) {
		line = strings.TrimSuffix(line, "\n")
		if strings.TrimSpace(line) == "..." {
			follows = false
			continue
		}
		i := slices.Index(lines, line)
		if !assert.True(t, i == 0 || i > 0 && !follows, "not in the rules, or not here: %s", line) {
			return
		}
		lines, follows = lines[i+1:], true
	}
}

func nftRules(t *testing.T) string {
	fake := nftdp.NewFake()
	b, err := nft.New(t.Context(), nft.Options{Dataplane: fake,
		Common: frontend.Common{Families: []model.Family{model.IPv4},
			NodePortAddresses: nodeaddr.Choice{Primary: true}}})
	require.NoError(t, err)
	apply(t, b)
	return fake.Dump(nftdp.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
}

func iptablesRules(t *testing.T) string {
	fake := iptablesdp.NewFake(model.IPv4)
	b, err := iptables.New(t.Context(), iptables.Options{Dataplanes: []iptablesdp.Interface{fake},
		Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{Primary: true}, Sysctls: sysctl.Root(t.TempDir())}})
	require.NoError(t, err)
	apply(t, b)
	return fake.Dump()
}

func ipvsRules(t *testing.T) string {
	root := t.TempDir()
	for _, name := range []string{"conntrack", "expire_nodest_conn", "expire_quiescent_template"} {
		path := filepath.Join(root, "proc/sys/net/ipv4/vs", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte("1\n"), 0o644))
	}
	b, err := ipvs.New(t.Context(), ipvs.Options{Dataplane: ipvsdp.NewFake(), NFTables: nftdp.NewFake(),
		Common: frontend.Common{Families: []model.Family{model.IPv4}, NodePortAddresses: nodeaddr.Choice{Primary: true},
			Host: host(), Sysctls: sysctl.Root(root)}})
	require.NoError(t, err)
	apply(t, b)
	text, err := b.DescribeService(t.Context(), model.ServiceName{Namespace: "shop", Name: "web"})
	require.NoError(t, err)
	return text
}

func hnsRules(t *testing.T) string {
	fake := hnsdp.NewFake()
	fake.SetNetwork(hnsdp.Network{Name: "cbr0", Type: "L2Bridge"}, false)
	pod := netip.MustParseAddr("10.244.1.8")
	fake.AddEndpoint("cbr0", hnsdp.Endpoint{IPs: []netip.Addr{pod}, MAC: "00-15-5d-01-02-03"})
	b, err := hns.New(t.Context(), hns.Options{Network: "cbr0", Dataplane: fake})
	require.NoError(t, err)
	apply(t, b)
	return fake.Dump()
}

// userspaceRules are the frontends with a listener: this process listens on other addresses, which are its own.
func userspaceRules(t *testing.T) string {
	b, err := userspace.New(t.Context(), userspace.Options{Addresses: elsewhere{},
		Common: frontend.Common{Host: host(),
			Families: []model.Family{model.IPv4}, NodePortAddresses: nodeaddr.Choice{Primary: true}}})
	require.NoError(t, err)
	apply(t, b)
	var text strings.Builder
	for _, l := range b.Listeners() {
		fmt.Fprintf(&text, "%v: listens on %v\n", l.Port, netip.AddrPortFrom(l.Frontend.Addr, l.Frontend.Port))
	}
	return text.String()
}

// elsewhere has a backend listen on free ports of the loopback address.
type elsewhere struct{ userspace.Existing }

func (elsewhere) ListenOn(frontend.Frontend) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)}
}

func host() *nodeaddr.Fake {
	h := &nodeaddr.Fake{}
	h.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.10"), Interface: "eth0"})
	return h
}

// apply has a backend apply the example, until the test ends.
func apply(t *testing.T, b interface {
	sink.Sink
	Close() error
}) {
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	d := fm.NewDriver(t, fm.Options{NewSink: func() sink.Sink { return b }})
	d.Set(example()...)
	d.Sync()
}
