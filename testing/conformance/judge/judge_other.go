//go:build !linux

package judge

import (
	"context"
	"errors"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Run runs the suite against a program. It needs Linux: here it fails.
func Run(context.Context, program.Proxy, Options) (*report.Report, error) {
	return nil, errors.New("the judge needs Linux, for network namespaces")
}

// Compare compares two programs in random clusters. It needs Linux: here it fails.
func Compare(context.Context, [2]program.Proxy, CompareOptions) (*report.Report, error) {
	return nil, errors.New("the judge needs Linux, for network namespaces")
}
