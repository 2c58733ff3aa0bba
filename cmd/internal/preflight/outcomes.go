package preflight

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// rule returns the rule for the difference between two outcomes.
func (m *move) rule(port model.PortName, to netip.AddrPort, before, after oracle.Outcome) string {
	f := model.FamilyOf(to.Addr())
	if slices.Contains(m.old.families, f) != slices.Contains(m.new.families, f) {
		return "S49"
	}
	if old, new := m.old.snapshot.Service(port.Service), m.new.snapshot.Service(port.Service); old != nil && new != nil &&
		slices.Contains(old.Service.ExternalIPs, to.Addr()) != slices.Contains(new.Service.ExternalIPs, to.Addr()) {
		return "S6"
	}
	if m.isHost(to.Addr()) && (before.Verdict == oracle.NotOurs || after.Verdict == oracle.NotOurs) {
		if to.Addr().IsLoopback() {
			return "S36"
		}
		return "S35"
	}
	return cmp.Or(newRule(after, before), newRule(before, after))
}

// newRule returns the first rule that is a reason for an outcome, but not for the other one.
func newRule(o, other oracle.Outcome) string {
	for _, r := range o.Reasons {
		if r.Rule != "" && !slices.Contains(other.Reasons, r) {
			return r.Rule
		}
	}
	return ""
}

const notServed = "not served"

// inWords describes an outcome, with the number of endpoints if that can be compared with the other outcome.
func inWords(o, other oracle.Outcome) string {
	switch o.Verdict {
	case oracle.Deliver:
		masqueraded := 0
		for _, e := range o.Endpoints {
			if e.SourceNAT {
				masqueraded++
			}
		}
		source := "the client's address"
		if masqueraded == len(o.Endpoints) {
			source = "an address of the node"
		} else if masqueraded > 0 {
			source = fmt.Sprintf("an address of the node for %d of them", masqueraded)
		}
		if other.Verdict != oracle.Deliver && (masqueraded == 0 || masqueraded == len(o.Endpoints)) {
			return fmt.Sprintf("delivered, with %s as the source", source)
		}
		return fmt.Sprintf("delivered to %s, with %s as the source", count(len(o.Endpoints), "endpoint"), source)
	case oracle.Reject:
		return "rejected"
	case oracle.Drop:
		return "dropped"
	}
	return notServed
}

// count returns "1 endpoint" or "2 endpoints".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
