package conformance_test

import (
	"context"
	"os/exec"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// newBackend stands for the backend under test.
func newBackend(context.Context, conformance.Env) (sink.Sink, error) { return new(sink.Recorder), nil }

// run starts a program in the node's namespace: all functions of a Factory are called there.
func run(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

func ExampleTest() {
	var t *testing.T // in a test: func TestConformance(t *testing.T)

	conformance.Test(t, conformance.Factory{
		New: newBackend,
		Cleanup: func(ctx context.Context, env conformance.Env) error {
			_, err := run(ctx, "nft", "destroy", "table", "inet", "mybackend")
			return err
		},
		Dump: func(ctx context.Context, env conformance.Env) (string, error) {
			return run(ctx, "nft", "--stateless", "list", "ruleset")
		},
		Break: func(ctx context.Context, env conformance.Env) error {
			_, err := run(ctx, "nft", "flush", "chain", "inet", "mybackend", "services")
			return err
		},
		Lacks: []conformance.Feature{conformance.SCTP, conformance.StaleFlows},
	})
}
