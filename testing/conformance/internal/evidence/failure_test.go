package evidence_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/evidence"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// wrongPod is a flow from outside that reached a pod it must not reach.
func wrongPod() (oracle.Outcome, oracle.Observation) {
	want := oracle.Outcome{
		Flow: oracle.Flow{From: oracle.External, Source: netip.MustParseAddr("203.0.113.9"),
			Destination: netip.MustParseAddrPort("192.0.2.10:30080"), Protocol: model.TCP},
		Verdict:   oracle.Deliver,
		Endpoints: []oracle.Destination{{Endpoint: netip.MustParseAddrPort("10.244.1.5:8080")}},
		Reasons: []oracle.Reason{{Text: "192.0.2.10:30080 is a node port of default/web", Rule: "S35"},
			{Text: "policy Local, and the client is outside: local endpoints only", Rule: "S27"}},
	}
	seen := oracle.Observation{Verdict: oracle.Deliver, Endpoint: netip.MustParseAddrPort("10.244.2.7:8080"),
		Source: netip.MustParseAddr("192.0.2.10")}
	return want, seen
}

func TestCompareNamesTheAlternatives(t *testing.T) {
	want, seen := wrongPod()
	want.AlsoAllowed = []oracle.Outcome{{Flow: want.Flow, Verdict: oracle.Drop,
		Reasons: []oracle.Reason{{Text: "it may", Rule: "S26"}}}}
	f := evidence.Compare("client", "the node port", want, seen, nil)
	assert.Equal(t, []string{"deliver to 10.244.1.5:8080", "drop"}, []string{f.Want[0].What, f.Want[1].What})
	assert.Equal(t, []report.Reason{{Text: "it may", Rule: "S26"}}, f.Want[1].Reasons)
}

// TestThePathSaysWhereItWentWrong: exactly one hop of the path is wrong, whatever was seen.
func TestThePathSaysWhereItWentWrong(t *testing.T) {
	want, seen := wrongPod()
	right := want.Endpoints[0].Endpoint
	host := func(addr netip.Addr) string { return map[string]string{"10.244.1.5": "local-1"}[addr.String()] }
	for _, tt := range []struct {
		name string
		seen oracle.Observation
		want []report.Hop
	}{
		{"another endpoint", seen, []report.Hop{
			{At: "node", Text: "the destination becomes 10.244.2.7:8080", Wrong: true},
			{At: "node", Text: "the source becomes 192.0.2.10"},
			{At: "10.244.2.7", Text: "answers at 10.244.2.7:8080"}}},
		{"another source", oracle.Observation{Verdict: oracle.Deliver, Endpoint: right, Source: seen.Source}, []report.Hop{
			{At: "node", Text: "the destination becomes 10.244.1.5:8080"},
			{At: "node", Text: "the source becomes 192.0.2.10", Wrong: true},
			{At: "local-1", Text: "answers at 10.244.1.5:8080"}}},
		{"not translated", oracle.Observation{Verdict: oracle.Deliver, Endpoint: want.Flow.Destination,
			Source: want.Flow.Source}, []report.Hop{
			{At: "node", Text: "the destination stays as it is", Wrong: true},
			{At: "node", Text: "the source stays as it is"},
			{At: "192.0.2.10", Text: "answers at 192.0.2.10:30080"}}},
		{"refused", oracle.Observation{Verdict: oracle.Reject}, []report.Hop{
			{At: "node", Text: "the connection is refused", Wrong: true}}},
		{"silence", oracle.Observation{Verdict: oracle.Drop}, []report.Hop{
			{At: "node", Text: "there is no answer", Wrong: true}}},
		{"left alone", oracle.Observation{Verdict: oracle.NotOurs}, []report.Hop{
			{At: "node", Text: "the packet goes on as it is", Wrong: true}}},
		{"nothing", oracle.Observation{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := evidence.Compare("client", "", want, tt.seen, host).Path
			assert.Equal(t, report.Hop{At: "client", Text: "sends from 203.0.113.9 to 192.0.2.10:30080"}, path[0])
			assert.Equal(t, tt.want, append([]report.Hop(nil), path[1:]...))
		})
	}
}
