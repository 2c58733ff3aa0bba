package report_test

import (
	"fmt"
	"os"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

func Example() {
	if err := report.WriteText(os.Stdout, example(), true); err != nil {
		fmt.Println(err)
	}
	// Output:
	// example-proxy 1.2.3, mode nftables, suite 0.1, kernel 6.1.0, seed 7
	//
	// core      failure  1 passed, 1 slow, 1 failed
	// extended  success  1 passed, 1 unsupported
	// note      partial  1 not run
	//
	// FAILED: external traffic stays on the node (S27)
	//   1 flow went wrong
	//
	//   flow:   client 203.0.113.9 -> 192.0.2.10:30080/TCP (the node port of web)
	//   seen:   delivered to 10.244.2.7:8080, which saw 192.0.2.10
	//   wanted: deliver to 10.244.1.5:8080
	//           - 192.0.2.10:30080 is a node port of default/web (S35)
	//           - policy Local, and the client is outside: local endpoints only (S27)
	//   path:
	//           - client: sends from 203.0.113.9 to 192.0.2.10:30080
	//           ! node: the destination becomes 10.244.2.7:8080
	//           - node: the source becomes 192.0.2.10
	//           - 10.244.2.7: answers at 10.244.2.7:8080
	//   objects:
	//     apiVersion: v1
	//     kind: Service
	//     metadata:
	//       name: web
	//
	//   ... and 2 more
	//
	// SLOW: UDP flows follow the endpoints (S40)
	//   right after 3 s
	//
	// not supported: SCTP
}
