package iptables

import (
	"net/netip"
	"slices"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// entry is what happens to the traffic of a frontend.
type entry struct {
	key   frontend.Key
	owner model.PortName
	to    target
}

// target is what the rules of an entry do with packets that match. The zero target means no rule.
type target struct {
	endpoints []netip.AddrPort // to one of these, at random
	rule      string           // or else this rule
}

func (t target) isZero() bool { return t.rule == "" && len(t.endpoints) == 0 }

func (e *entry) equal(o *entry) bool { return e.key == o.key && e.owner == o.owner && e.to.equal(o.to) }

func (t target) equal(o target) bool {
	return t.rule == o.rule && slices.Equal(t.endpoints, o.endpoints)
}

// match returns the match for packets of an entry; withPort if the tree has not matched the port yet.
func (e *entry) match(withPort bool) string {
	match := ""
	if e.key.Addr.IsValid() {
		match = "-d " + hostText(e.key.Addr) + " "
	}
	if withPort {
		return match + portMatch(e.key.Protocol, strconv.Itoa(int(e.key.Port)))
	}
	return match + protocolMatch(e.key.Protocol)
}

// rules appends the rules of an entry that is not in a group.
func (e *entry) rules(rules []string, withPort bool) []string {
	if e.key.Protocol == noProtocol {
		return append(rules, "-s "+hostText(e.key.Addr)+" -d "+hostText(e.key.Addr)+" "+e.to.rule)
	}
	match, note := e.match(withPort), comment(portComment(e.owner))
	if len(e.to.endpoints) == 0 {
		return append(rules, match+note+e.to.rule)
	}
	return balance(rules, match, note, e.to.endpoints)
}

// balance appends rules that send to one of the endpoints at random. The first one has a comment.
func balance(rules []string, match, note string, endpoints []netip.AddrPort) []string {
	for i, ep := range endpoints {
		rules = append(rules, match+note+chance(1, len(endpoints)-i)+dnat(ep))
		note = ""
	}
	return rules
}

func dnat(ep netip.AddrPort) string {
	to := dp.Address(ep.Addr())
	if ep.Addr().Is6() {
		to = "[" + to + "]"
	}
	return "-j DNAT --to-destination " + to + ":" + strconv.Itoa(int(ep.Port()))
}
