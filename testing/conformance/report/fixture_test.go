package report_test

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// example is a report with every verdict.
func example() *report.Report {
	failure := report.Failure{
		Flow: &report.Flow{From: "client", To: "the node port of web", Source: "203.0.113.9",
			Destination: "192.0.2.10:30080", Protocol: "TCP"},
		Seen: "delivered to 10.244.2.7:8080, which saw 192.0.2.10",
		Want: []report.Outcome{{What: "deliver to 10.244.1.5:8080", Reasons: []report.Reason{
			{Text: "192.0.2.10:30080 is a node port of default/web", Rule: "S35"},
			{Text: "policy Local, and the client is outside: local endpoints only", Rule: "S27"}}}},
		Path: []report.Hop{
			{At: "client", Text: "sends from 203.0.113.9 to 192.0.2.10:30080"},
			{At: "node", Text: "the destination becomes 10.244.2.7:8080", Wrong: true},
			{At: "node", Text: "the source becomes 192.0.2.10"},
			{At: "10.244.2.7", Text: "answers at 10.244.2.7:8080"}},
		Objects: "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n",
	}
	return &report.Report{
		Implementation: report.Implementation{Name: "example-proxy", Version: "1.2.3", Mode: "nftables",
			Command: "go run ./cmd/judge --proxy 'example-proxy {flags}' --seed 7"},
		Kernel: "6.1.0", Suite: "0.1", Seed: 7,
		Machine: &report.Machine{Processors: 2, LoadBefore: 0.5, LoadAfter: 51.3, Others: 62, Steal: 1, Waiting: 40},
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
			{Case: "the client stays with its endpoint", Rules: []string{"S32"}, Profile: report.Core,
				Verdict: report.NotJudged,
				Why:     "the machine was too busy: other programs had 24 threads ready to run for each processor"},
			{Case: "the oldest service owns a shared address", Rules: []string{"S59"}, Profile: report.Note,
				Verdict: report.NotRun, Why: "not selected"},
		},
	}
}
