package report

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// Compare returns the failure of a flow: what was seen, and what the oracle wanted. from and to are the words for the
// flow's ends, see [Flow]; place returns the name of the place that has an address, or "".
func Compare(from, to string, want oracle.Outcome, seen oracle.Observation, place func(netip.Addr) string) Failure {
	f := want.Flow
	return Failure{
		Flow: &Flow{From: from, To: to, Source: f.Source.String(), Destination: f.Destination.String(),
			Protocol: f.Protocol.String()},
		Seen: seen.String(),
		Want: Want(want),
		Path: path(from, want, seen, place),
	}
}

// Want returns an outcome of the oracle and its alternatives.
func Want(o oracle.Outcome) []Outcome {
	list := []Outcome{outcome(o)}
	for _, also := range o.AlsoAllowed {
		list = append(list, outcome(also))
	}
	return list
}

func outcome(o oracle.Outcome) Outcome {
	out := Outcome{What: o.Verdict.String()}
	for i, d := range o.Endpoints {
		out.What += []string{" to ", " or "}[min(i, 1)] + d.String()
	}
	for _, r := range o.Reasons {
		out.Reasons = append(out.Reasons, Reason{Text: r.Text, Rule: r.Rule})
	}
	return out
}

// path returns the stations of a packet: its source, the node, and the endpoint that answered.
func path(from string, want oracle.Outcome, seen oracle.Observation, place func(netip.Addr) string) []Hop {
	named := func(addr netip.Addr) string {
		if place != nil {
			if name := place(addr); name != "" {
				return name
			}
		}
		return addr.String()
	}
	f := want.Flow
	hops := []Hop{{At: from, Text: "sends from " + f.Source.String() + " to " + f.Destination.String()}}
	switch seen.Verdict {
	case oracle.Reject:
		return append(hops, Hop{At: "node", Text: "the connection is refused", Wrong: true})
	case oracle.Drop:
		return append(hops, Hop{At: "node", Text: "there is no answer", Wrong: true})
	case oracle.NotOurs:
		return append(hops, Hop{At: "node", Text: "the packet goes on as it is", Wrong: true})
	case oracle.Deliver:
		right := false // the endpoint, so that its source is wrong
		for _, d := range want.Endpoints {
			right = right || d.Endpoint == seen.Endpoint
		}
		translated := Hop{At: "node", Text: "the destination becomes " + seen.Endpoint.String(), Wrong: !right}
		if seen.Endpoint == f.Destination {
			translated.Text = "the destination stays as it is"
		}
		kept := "the source stays as it is"
		if seen.Source != f.Source {
			kept = "the source becomes " + seen.Source.String()
		}
		return append(hops, translated, Hop{At: "node", Text: kept, Wrong: right},
			Hop{At: named(seen.Endpoint.Addr()), Text: "answers at " + seen.Endpoint.String()})
	}
	return hops
}
