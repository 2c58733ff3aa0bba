package report_test

import (
	"fmt"
	"os"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

func Example() {
	text, err := os.ReadFile("testdata/example.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := report.Read(text)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Title())
	for _, p := range []report.Profile{report.Core, report.Extended} {
		fmt.Println(p, r.Conclusion(p)+":", r.Counts(p))
	}
	for _, result := range r.Results {
		for _, f := range result.Failures {
			fmt.Printf("%v\n  %s\n", f.Flow, f.Seen)
		}
	}
	// Output:
	// example-proxy 1.2.3, mode nftables
	// core failure: 1 passed, 1 slow, 1 failed, 1 not judged
	// extended success: 1 passed, 1 unsupported
	// client 203.0.113.9 -> 192.0.2.10:30080/TCP (the node port of web)
	//   delivered to 10.244.2.7:8080, which saw 192.0.2.10
}
