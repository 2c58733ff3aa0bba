package nft

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// probe finds out whether the kernel supports everything that the backend makes, without making anything: it has the
// kernel check a table with one of each, under an unused name.
func probe(ctx context.Context, d dp.Interface, family model.Family, o *Options) error {
	pod := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if family == model.IPv6 {
		pod = netip.MustParseAddr("2001:db8::1")
	}
	around := netip.PrefixFrom(pod, pod.BitLen()-3).Masked()
	key := dp.TableKey{Family: family, Name: "kube-proxy-lib.probe"}
	table, err := frontend.New(frontend.Options{Families: []model.Family{family},
		Apply: func(ctx context.Context, c *frontend.Changes) error {
			p := newPlan(newTable())
			p.adopt(&dp.Table{}, nil)
			p.planAll(newConfig(family, o, c.Node()), c)
			tx, _ := p.transactions(key)
			return d.Check(ctx, tx)
		}})
	if err != nil {
		return err
	}
	table.SetNode(&model.Node{ServiceCIDRs: []netip.Prefix{around},
		LocalPods: model.LocalPods{InterfacePrefix: "veth"}})
	for i, timeout := range []time.Duration{0, time.Hour} {
		routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: true,
			External: model.TrafficPolicyLocal, DetectsLocalPods: true})
		port := model.ServicePort{Protocol: model.TCP, Port: uint16(80 + i), NodePort: uint16(30080 + i),
			Routes: model.PerFamily[model.Routes]{IPv4: routes, IPv6: routes}}
		s := &model.Service{Name: model.ServiceName{Name: fmt.Sprint("probe-", i)}, ClusterIPs: []netip.Addr{pod},
			LoadBalancerIPs: []netip.Addr{pod.Next()}, LoadBalancerSourceRanges: []netip.Prefix{around},
			Ports: []model.ServicePort{port}, SessionAffinityTimeout: timeout}
		table.SetService(s)
		for n := range uint16(2) {
			table.SetEndpoint(&model.Endpoint{Port: s.PortName(port), Target: netip.AddrPortFrom(pod, 80+n),
				Local: true, Sets: model.ClusterSet | model.LocalSet})
		}
	}
	if err := table.Sync(ctx); err != nil {
		return fmt.Errorf("this kernel cannot do what is needed for %v, which Linux 5.10 and later can with "+
			"nf_tables, nft_nat, nft_masq, nft_fib, nft_reject, nft_numgen and nft_ct built in or loadable: %w",
			family, err)
	}
	return nil
}
