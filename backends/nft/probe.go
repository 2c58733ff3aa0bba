package nft

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/serviceport"
	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// probe finds out whether the kernel takes everything that the backend makes, without making anything: it has a table
// checked that has one of each, under a name that nobody has.
func probe(ctx context.Context, d dp.Interface, family model.Family, o *Options) error {
	pod := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if family == model.IPv6 {
		pod = netip.MustParseAddr("2001:db8::1")
	}
	c := newConfig(family, o, &model.Node{})
	c.localPods = model.LocalPods{InterfacePrefix: "veth"}
	c.serviceCIDRs = []netip.Prefix{netip.PrefixFrom(pod, pod.BitLen()-3).Masked()}
	s := newSets()
	p := &port{affinity: "affinity-probe", Port: serviceport.Port{Name: model.PortName{Protocol: model.TCP}, AffinityTimeout: time.Hour,
		Cluster: []netip.AddrPort{netip.AddrPortFrom(pod, 80), netip.AddrPortFrom(pod, 81)}}}

	tx := dp.NewTransaction(dp.TableKey{Family: family, Name: "kube-proxy-lib.probe"})
	tx.AddTable(layoutComment)
	for _, set := range s.all() {
		tx.AddSet(set)
	}
	balance := func(m model.Masquerade) destination {
		return destination{set: model.ClusterSet, n: 2, masquerade: m}
	}
	chains := c.baseChains(s)
	chains = append(chains, c.chains(s, dispatch{fromPod: balance(model.MasqueradeNever), fromNode: balance(model.MasqueradeAlways),
		other: balance(model.MasqueradeUnlessLocalPod), restricted: true})...)
	last := chains[len(chains)-1].Name
	chains = append(chains, p.affinityChains(c, s)...)
	for i := range chains {
		tx.AddChain(&chains[i].Chain)
	}
	for i := range chains {
		for j := range chains[i].rules {
			tx.AddRule(chains[i].Name, &chains[i].rules[j])
		}
	}
	key := string(dp.AppendPort(dp.AppendProtocol(dp.AppendAddr(nil, pod), model.TCP), 80))
	tx.AddElements(s.endpoints, slotElement(key, 0, p.Cluster[0]))
	tx.AddElements(s.vipSources, sourceElement(key, addrRange{pod, pod.Next()}))
	tx.AddElements(s.hairpin, hairpinElement(pod))
	tx.AddElements(s.serviceIPs, dp.Element{Key: key, Value: last, Comment: "probe"})
	if err := d.Check(ctx, tx); err != nil {
		return fmt.Errorf("this kernel cannot do what is needed for %v, which Linux 5.13 and later can with nf_tables, nft_nat, "+
			"nft_masq, nft_fib, nft_reject, nft_numgen and nft_ct built in or loadable: %w", family, err)
	}
	return nil
}
