package ipvs_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The kernel reports what another program takes away, and everything is there again without a Sync: with a name and
// marks of the options.
func TestTheKernelsInterfaceComesBackAtOnce(t *testing.T) {
	needIPVS(t)
	const link = "kube-ipvs0"
	ns := testkit.NewNamespace(t)
	var b *ipvs.Backend
	var kernel *dataplane.Kernel
	ns.Do(func() (err error) {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(lo))
		if kernel, err = dataplane.NewKernel(t.Context(), link); err != nil {
			return err
		}
		b, err = ipvs.New(context.Background(), ipvs.Options{Common: frontend.Common{Families: model.Families()}, Link: link,
			Marks: 0x3fff})
		return err
	})
	t.Cleanup(func() { require.NoError(t, kernel.Close()) })
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	b.SetNode(fm.Node("n1").IP("192.0.2.10").Build())
	b.SetService(fm.Service("default/four").ClusterIP("10.96.0.10").Port("http", 80).Build())
	b.SetService(fm.Service("default/six").ClusterIP("fd00:96::10").Port("http", 80).Build())
	ns.Do(func() error { return b.Sync(t.Context()) })
	for repairs := 0; repairs < 3; {
		ns.Do(func() error {
			l, err := netlink.LinkByName(link)
			require.NoError(t, err)
			return netlink.LinkDel(l)
		})
		require.Eventually(t, func() bool {
			four, err4 := kernel.Addresses(t.Context(), model.IPv4)
			six, err6 := kernel.Addresses(t.Context(), model.IPv6)
			return err4 == nil && err6 == nil && len(four) == 1 && len(six) == 1 &&
				four[0] == netip.MustParseAddr("10.96.0.10") && six[0] == netip.MustParseAddr("fd00:96::10")
		}, 2*time.Minute, 10*time.Millisecond)
		_, repairs = b.Repairs()
	}
}
