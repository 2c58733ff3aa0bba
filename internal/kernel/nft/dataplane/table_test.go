package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"go4.org/netipx"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// sample holds one of everything that a table can hold.
type sample struct {
	key                                                         TableKey
	services, endpoints, sources, same, sticky, shared, indexed *Set
	vip, pod                                                    netip.Addr
}

func newSample(f model.Family) sample {
	vipKey := []Field{DestinationAddr, Protocol, DestinationPort}
	s := sample{
		key:      TableKey{f, "kpl-sample"},
		services: &Set{Name: "service-ips", Comment: "what goes where", Key: vipKey, Verdicts: true},
		endpoints: &Set{Name: "endpoints", Key: append(vipKey[:3:3], Random),
			Value: []Field{DestinationAddr, DestinationPort}},
		sources: &Set{Name: "ranges", Key: []Field{SourceAddr}, Interval: true},
		same:    &Set{Name: "hairpin", Key: []Field{SourceAddr, DestinationAddr}},
		sticky:  &Set{Name: "affinity", Key: []Field{SourceAddr, Constant}, Dynamic: true},
		shared:  &Set{Name: "clients", Key: []Field{SourceAddr, Scope, Constant}, Dynamic: true},
		indexed: &Set{Name: "indexed", Key: []Field{Constant, Random}, Value: []Field{DestinationAddr, DestinationPort},
			Size: 1024},
		vip: netip.MustParseAddr("10.96.0.1"),
		pod: netip.MustParseAddr("10.244.1.5"),
	}
	if f == model.IPv6 {
		s.vip, s.pod = netip.MustParseAddr("fd00:96::1"), netip.MustParseAddr("fd00:244::5")
	}
	return s
}

func (s sample) vipKey() []byte {
	return AppendPort(AppendProtocol(AppendAddr(nil, s.vip), model.TCP), 80)
}

func (s sample) slot(n uint32, to netip.Addr, port uint16) Element {
	return Element{Key: string(AppendNumber(s.vipKey(), n)), Value: string(AppendPort(AppendAddr(nil, to), port))}
}

// ranges have the first address of all, the last one, a prefix, and a range that is none.
func (s sample) ranges() []netipx.IPRange {
	first := netip.PrefixFrom(s.pod, 0).Masked().Addr()
	from := func(a netip.Addr, bits int) netipx.IPRange { return netipx.RangeOfPrefix(netip.PrefixFrom(a, bits)) }
	all := from(first, 0)
	return []netipx.IPRange{netipx.IPRangeFrom(first, first.Next()), from(s.pod, s.pod.BitLen()*3/4),
		netipx.IPRangeFrom(s.vip, s.vip.Next().Next()), netipx.IPRangeFrom(all.To(), all.To())}
}

func (s sample) create() *Transaction {
	tx := NewTransaction(s.key)
	tx.AddTable("a sample")
	for _, set := range []*Set{s.services, s.endpoints, s.sources, s.same, s.sticky, s.shared, s.indexed} {
		tx.AddSet(set)
	}
	chain := func(name string, rules ...[]Statement) {
		tx.AddChain(&Chain{Name: name})
		for _, r := range rules {
			tx.AddRule(name, &Rule{Statements: r})
		}
	}
	prefix := netip.PrefixFrom(s.pod, s.pod.BitLen()*3/4)
	odd := netip.PrefixFrom(s.pod, s.pod.BitLen()*3/4-3)
	chain("reject-new", []Statement{Reject{}})
	tx.AddChain(&Chain{Name: "cluster-2", Comment: "2 endpoints"})
	tx.AddRule("cluster-2", &Rule{Statements: []Statement{
		InPrefix{SourceAddr, prefix, true}, InPrefix{SourceAddr, odd, true}, SetMark{1 << 14}}})
	tx.AddRule("cluster-2", &Rule{Comment: "balance",
		Statements: []Statement{DNATMap{Map: s.endpoints, N: 2}}})
	dnat := DNAT{netip.AddrPortFrom(s.pod, 80)}
	chain("sticky",
		[]Statement{InSet{Set: s.sticky, ID: 7},
			Refresh{Set: s.sticky, ID: 7, Timeout: 3 * time.Hour}, IsProtocol{model.TCP}, dnat},
		[]Statement{OneIn{2}, Refresh{Set: s.sticky, ID: 4294967295, Timeout: 90 * time.Minute},
			IsProtocol{model.TCP}, dnat},
		[]Statement{InSet{Set: s.shared, ID: 7, Scope: 8},
			Refresh{Set: s.shared, ID: 7, Scope: 8, Timeout: time.Hour}, IsProtocol{model.TCP}, dnat},
		[]Statement{InSet{Set: s.shared, ID: 7, Scope: 8},
			Refresh{Set: s.shared, ID: 7, Scope: 4294967295, Timeout: time.Minute}, IsProtocol{model.TCP}, dnat})
	chain("some", []Statement{Fraction{128, 300}, Return{}}, []Statement{Jump{"sticky"}})
	chain("split",
		[]Statement{InPrefix{Field: SourceAddr, Prefix: odd}, Goto{"cluster-2"}},
		[]Statement{FromInterface{Name: "veth", Prefix: true}, Goto{"cluster-2"}},
		[]Statement{FromInterface{Name: "cbr0", Not: true}, Goto{"cluster-2"}},
		[]Statement{IsLocal{SourceAddr}, Goto{"sticky"}},
		[]Statement{InSet{Set: s.sources}, Return{}},
		[]Statement{InPrefix{Field: DestinationAddr, Prefix: netip.PrefixFrom(s.vip, s.vip.BitLen())},
			Goto{"reject-new"}})
	chain("keep", []Statement{KeepDestination{}})
	chain("services", []Statement{GotoMap{s.services}},
		[]Statement{IsLocal{DestinationAddr}, Jump{"split"}}, []Statement{Goto{"keep"}})
	tx.AddChain(&Chain{Name: "nat-prerouting", Hook: Prerouting, Priority: -100})
	tx.AddRule("nat-prerouting", &Rule{Statements: []Statement{Jump{"services"}}})
	tx.AddChain(&Chain{Name: "nat-output", Hook: Output, Priority: -100})
	tx.AddRule("nat-output", &Rule{Statements: []Statement{Jump{"services"}}})
	tx.AddChain(&Chain{Name: "nat-postrouting", Hook: Postrouting, Priority: 100})
	tx.AddRule("nat-postrouting", &Rule{Statements: []Statement{HasMark{1 << 14}, FlipMark{1 << 14}, Masquerade{}}})
	tx.AddRule("nat-postrouting", &Rule{Statements: []Statement{
		IsDNATed{}, InSet{Set: s.same}, Masquerade{}}})

	chain("indexed", []Statement{
		IsProtocol{model.SCTP}, DNATMap{Map: s.indexed, ID: 4294967295, N: 2}})
	tx.AddRule("split", &Rule{Statements: []Statement{Goto{"indexed"}}})
	tx.AddChain(&Chain{Name: "filter-forward", Hook: Forward, Filter: true})
	tx.AddRule("filter-forward", &Rule{Statements: []Statement{IsNew{}, Jump{"reject-new"}}})
	tx.AddElements(s.indexed, Element{Key: string(AppendNumber(AppendNumber(nil, 4294967295), 1)),
		Value: string(AppendPort(AppendAddr(nil, s.pod), 80))})
	tx.AddElements(s.endpoints, s.slot(0, s.pod, 8080), s.slot(1, s.pod.Next(), 8080))
	tx.AddElements(s.services, Element{Key: string(s.vipKey()), Value: "cluster-2", Comment: "default/web:http"})
	for _, r := range s.ranges() {
		tx.AddElements(s.sources, Element{Key: string(AppendAddr(AppendAddr(nil, r.From()), r.To()))})
	}
	tx.AddElements(s.same, Element{Key: string(AppendAddr(AppendAddr(nil, s.pod), s.pod))})
	return tx
}

func bothFamilies(t *testing.T, f func(t *testing.T, s sample)) {
	for _, family := range model.Families() {
		t.Run(family.String(), func(t *testing.T) { f(t, newSample(family)) })
	}
}
