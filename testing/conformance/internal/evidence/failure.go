package evidence

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Compare returns the failure of a flow. from and to describe the flow's ends, see [report.Flow]; host returns the
// name of the host that has an address, or "".
func Compare(from, to string, want oracle.Outcome, seen oracle.Observation,
	host func(netip.Addr) string) report.Failure {
	f := want.Flow
	return report.Failure{
		Flow: &report.Flow{From: from, To: to, Source: f.Source.String(), Destination: f.Destination.String(),
			Protocol: f.Protocol.String()},
		Seen: seen.String(),
		Want: wants(want),
		Path: path(from, want, seen, host),
	}
}

// wants converts an outcome of the oracle and its alternatives.
func wants(o oracle.Outcome) []report.Outcome {
	list := []report.Outcome{outcome(o)}
	for _, also := range o.AlsoAllowed {
		list = append(list, outcome(also))
	}
	return list
}

func outcome(o oracle.Outcome) report.Outcome {
	out := report.Outcome{What: o.Verdict.String()}
	for i, d := range o.Endpoints {
		out.What += []string{" to ", " or "}[min(i, 1)] + d.String()
	}
	for _, r := range o.Reasons {
		out.Reasons = append(out.Reasons, report.Reason{Text: r.Text, Rule: r.Rule})
	}
	return out
}

// path returns the hops of a packet: its source, the node, and the endpoint that answered.
func path(from string, want oracle.Outcome, seen oracle.Observation, host func(netip.Addr) string) []report.Hop {
	named := func(addr netip.Addr) string {
		if host != nil {
			if name := host(addr); name != "" {
				return name
			}
		}
		return addr.String()
	}
	f := want.Flow
	hops := []report.Hop{{At: from, Text: "sends from " + f.Source.String() + " to " + f.Destination.String()}}
	switch seen.Verdict {
	case oracle.Reject:
		return append(hops, report.Hop{At: "node", Text: "the connection is refused", Wrong: true})
	case oracle.Drop:
		return append(hops, report.Hop{At: "node", Text: "there is no answer", Wrong: true})
	case oracle.NotOurs:
		return append(hops, report.Hop{At: "node", Text: "the packet goes on as it is", Wrong: true})
	case oracle.Deliver:
		right := false // the right endpoint saw the wrong source
		for _, d := range want.Endpoints {
			right = right || d.Endpoint == seen.Endpoint
		}
		translated := report.Hop{At: "node", Text: "the destination becomes " + seen.Endpoint.String(), Wrong: !right}
		if seen.Endpoint == f.Destination {
			translated.Text = "the destination stays as it is"
		}
		kept := "the source stays as it is"
		if seen.Source != f.Source {
			kept = "the source becomes " + seen.Source.String()
		}
		return append(hops, translated, report.Hop{At: "node", Text: kept, Wrong: right},
			report.Hop{At: named(seen.Endpoint.Addr()), Text: "answers at " + seen.Endpoint.String()})
	}
	return hops
}
