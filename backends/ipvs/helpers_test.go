package ipvs

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
)

// kernel is everything that a backend changes.
type kernel struct {
	ipvs *dp.Fake
	nft  *nft.Fake
	host *nodeaddr.Fake
	root string
	last *Backend // that was started
}

func newKernel(t testing.TB) *kernel {
	k := &kernel{ipvs: dp.NewFake(), nft: nft.NewFake(), host: &nodeaddr.Fake{}, root: t.TempDir()}
	k.host.Set(
		nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.10"), Interface: "eth0"},
		nodeaddr.HostAddress{Addr: netip.MustParseAddr("2001:db8::10"), Interface: "eth0"})
	for _, name := range []string{"ipv4/vs/conntrack", "ipv4/vs/expire_nodest_conn",
		"ipv4/vs/expire_quiescent_template", "ipv4/ip_forward", "ipv6/conf/all/forwarding",
		"ipv4/conf/all/arp_ignore", "ipv4/conf/all/arp_announce"} {
		path := filepath.Join(k.root, "proc/sys/net", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte("0\n"), 0o644))
	}
	return k
}

// options are those of a backend on the kernel: it checks for drained endpoints when the test says so.
func (k *kernel) options() Options {
	return Options{Dataplane: k.ipvs, NFTables: k.nft, Common: frontend.Common{Host: k.host,
		Sysctls: sysctl.Root(k.root), NodePortAddresses: nodeaddr.Choice{Primary: true}}, drainInterval: time.Hour}
}

// start starts a backend, as after a restart of the process if there was one before: that one has ended, and repairs
// nothing any more.
func (k *kernel) start(t testing.TB, change ...func(*Options)) *Backend {
	t.Helper()
	if k.last != nil {
		require.NoError(t, k.last.Close())
	}
	o := k.options()
	for _, c := range change {
		c(&o)
	}
	b, err := New(context.Background(), o)
	require.NoError(t, err)
	k.last = b
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	k.ipvs.TakeCalls()
	return b
}

func (k *kernel) sysctl(t testing.TB, name string) string {
	value, err := sysctl.Root(k.root).Get(name)
	require.NoError(t, err)
	return value
}

// put describes values and applies them.
func put(t testing.TB, b *Backend, values ...any) {
	t.Helper()
	backendtest.Set(t, b, values...)
	require.NoError(t, b.Sync(t.Context()))
}

func key(addr string, p model.Protocol) dp.ServerKey {
	a := netip.MustParseAddrPort(addr)
	return dp.ServerKey{Family: model.FamilyOf(a.Addr()), Addr: a.Addr(), Port: a.Port(), Protocol: p}
}

// table returns the table of a family as nft prints it.
func (k *kernel) table(f model.Family) string {
	return k.nft.Dump(nft.TableKey{Family: f, Name: tableName})
}

// drain checks for connections that have ended.
func (b *Backend) drain(t testing.TB, f model.Family) {
	t.Helper()
	require.NoError(t, b.tryToDrain(t, f))
}

// tryToDrain drains as the check in the background does, so that it does not run beside one.
func (b *Backend) tryToDrain(t testing.TB, key model.Family) (err error) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	now := make(chan struct{}, 1)
	now <- struct{}{}
	b.Repair(ctx, 0, now, func(ctx context.Context, c *frontend.Changes) (frontend.CheckResult, error) {
		if c.Family() == key {
			err = b.families[key].drain(ctx)
			end()
		}
		return frontend.CheckResult{}, nil
	})
	return err
}
