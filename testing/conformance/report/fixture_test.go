package report_test

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
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

// example is a report with every verdict.
func example() *report.Report {
	failure := report.Compare("client", "the node port of web", wrongPodWant(), wrongPodSeen(), nil)
	failure.Objects = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n"
	return &report.Report{
		Implementation: report.Implementation{Name: "example-proxy", Version: "1.2.3", Mode: "nftables"},
		Kernel:         "6.1.0", Suite: "0.1", Seed: 7,
		Results: []report.Result{
			{Case: "terminating endpoints are a fallback", Rules: []string{"S21"}, Profile: report.Core,
				Verdict: report.Passed, Elapsed: 1500 * time.Millisecond},
			{Case: "external traffic stays on the node", Rules: []string{"S27"}, Profile: report.Core,
				Verdict: report.Failed, Why: "1 flow went wrong", Failures: []report.Failure{failure}, More: 2},
			{Case: "UDP flows follow the endpoints", Rules: []string{"S40"}, Profile: report.Core, Verdict: report.Slow,
				Why: "right after 3 s"},
			{Case: "SCTP is served", Profile: report.Extended, Feature: "SCTP", Verdict: report.Unsupported,
				Why: "the proxy lacks SCTP"},
			{Case: "affinity ends after its timeout", Rules: []string{"S32"}, Profile: report.Extended,
				Feature: "SessionAffinity", Verdict: report.Passed},
			{Case: "the oldest service owns a shared address", Rules: []string{"S59"}, Profile: report.Note,
				Verdict: report.NotRun, Why: "not selected"},
		},
	}
}

func wrongPodWant() oracle.Outcome     { want, _ := wrongPod(); return want }
func wrongPodSeen() oracle.Observation { _, seen := wrongPod(); return seen }
