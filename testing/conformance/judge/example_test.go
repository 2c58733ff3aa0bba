package judge_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// open stands for code that makes an API server and prepares the program, see [program.Host].
func open(context.Context, program.Node, program.Configuration) (program.Host, error) {
	return nil, errors.New("write one")
}

// The cases about UDP flows, for a program that does not serve SCTP.
func ExampleRun() {
	r, err := judge.Run(context.Background(),
		program.Proxy{Open: open, Configures: true, Lacks: []string{"SCTP"}},
		judge.Options{Run: regexp.MustCompile("^UDP flows"), Progress: func(r report.Result, of int) {
			fmt.Println(r.Case, r.Verdict, "of", of)
		}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Counts(report.Core))
}

// Options.Rates are in changes per second.
func ExampleValidRate() {
	fmt.Println(judge.ValidRate(10))
	fmt.Println(judge.ValidRate(5000))
	// Output:
	// <nil>
	// 5000 changes a second: at least 1, at most 1000
}
