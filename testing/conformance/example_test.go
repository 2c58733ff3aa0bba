package conformance_test

import (
	"context"
	"os/exec"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// backend stands for the backend under test.
type backend struct{ sink.Recorder }

func newBackend(context.Context, conformance.Env, *atomic.Bool) (*backend, error) {
	return new(backend), nil
}

func (b *backend) serveNodePortsOn(nodeaddr.Addresses) {}

func ExampleTest() {
	var t *testing.T        // in a test: func TestConformance(t *testing.T)
	var failing atomic.Bool // newBackend's dataplane asks it before it writes

	nft := need.Program(t, "nft") // or the test is skipped, and says what to install
	// All functions of a Factory are called in the node's namespace, where the programs that they start run as well.
	run := func(ctx context.Context, args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, nft, args...).CombinedOutput()
		return string(out), err
	}
	conformance.Test(t, conformance.Factory{
		New: func(ctx context.Context, env conformance.Env) (sink.Sink, error) {
			return newBackend(ctx, env, &failing)
		},
		Cleanup: func(ctx context.Context, env conformance.Env) error {
			_, err := run(ctx, "destroy", "table", "inet", "mybackend")
			return err
		},
		Dump: func(ctx context.Context, env conformance.Env) (string, error) {
			return run(ctx, "--stateless", "list", "ruleset")
		},
		Break: func(ctx context.Context, env conformance.Env) error {
			_, err := run(ctx, "flush", "chain", "inet", "mybackend", "services")
			return err
		},
		Fail: func(context.Context, conformance.Env) (repair func() error, err error) {
			failing.Store(true)
			return func() error { failing.Store(false); return nil }, nil
		},
		Lacks: []conformance.Feature{conformance.SCTP, conformance.StaleFlows},
	})
}

// A backend that serves node ports on the addresses that the node has now, and on those that it gets later.
func ExampleEnv() {
	var failing atomic.Bool
	start := func(ctx context.Context, env conformance.Env) (sink.Sink, error) { // Factory.New
		b, err := newBackend(ctx, env, &failing)
		if err != nil {
			return nil, err
		}
		tracker, err := nodeaddr.NewTracker(nodeaddr.Options{
			Choice:  env.NodePorts,
			Host:    &hostaddr.System{NetNS: int(env.NetNS.Fd())},
			Changed: b.serveNodePortsOn, // called by Run and SetNode: it needs a lock
		})
		if err != nil {
			return nil, err
		}
		go tracker.Run(ctx)
		b.serveNodePortsOn(tracker.Addresses())
		return b, nil
	}
	_ = conformance.Factory{New: start}
}
