package conformance

import (
	"context"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/suite"
)

// Test runs the suite against a backend, each case as a subtest. Cases that need a feature that the backend lacks are
// skipped, and listed again at the end, before the counts; "go test -v" shows both.
//
// It needs Linux and the right to create network namespaces: root, or "unshare -rn go test ...". Without it the test is
// skipped; with KPL_REQUIRE=1 in the environment it fails. Test changes nothing outside the namespaces that it creates.
// Backends that do the same can be tested in parallel.
func Test(t *testing.T, f Factory) {
	t.Helper()
	suite.Test(t, f.backend())
}

// Random applies n random states in turn and compares random traffic with the oracle. Now and then it restarts the
// backend, cancels a Sync, or starts a fresh backend with another configuration. The seed determines everything.
//
// The first failure ends the test, after Random has reduced the events that caused it. The message contains the seed,
// these events, the flows, and the ruleset. Random needs what [Test] needs.
func Random(t *testing.T, f Factory, seed uint64, n int) {
	t.Helper()
	suite.Random(t, f.backend(), seed, n)
}

// Forward is a simulated dataplane. It returns the result of the first packet of a connection from a source port, as
// the backend has programmed the simulation. NotOurs means that the packet is left alone.
type Forward func(f oracle.Flow, sourcePort uint16) oracle.Observation

// Simulate runs the cases of [Test] that need no real packets, against a backend whose dataplane is simulated because
// the real one is not available. The cases and the oracle are the same; it creates no network and needs no root.
// Factory.Lacks may also contain Routes, which only a simulation may lack.
func Simulate(t *testing.T, f Factory, forward Forward) {
	t.Helper()
	suite.Simulate(t, f.backend(), forward)
}

// SimulateRandom is [Random] for such a backend.
func SimulateRandom(t *testing.T, f Factory, forward Forward, seed uint64, n int) {
	t.Helper()
	suite.SimulateRandom(t, f.backend(), forward, seed, n)
}

// Do calls f on a thread in the node's network namespace and returns its error. Sockets that f opens (also with
// net.Dial) and programs that it starts belong to the node. Do may be called concurrently, until the test ends.
func (e Env) Do(f func() error) error { return osthread.In(int(e.NetNS.Fd()), f) }

// backend returns the factory as the packages below know it.
func (f Factory) backend() backend.Factory {
	hook := func(call func(context.Context, Env) error) func(context.Context, backend.Env) error {
		if call == nil {
			return nil
		}
		return func(ctx context.Context, env backend.Env) error { return call(ctx, Env(env)) }
	}
	b := backend.Factory{Cleanup: hook(f.Cleanup), Stop: hook(f.Stop), Break: hook(f.Break),
		RepairsItself: f.RepairsItself, Waives: f.Waives}
	if f.New != nil {
		b.New = func(ctx context.Context, env backend.Env) (sink.Sink, error) { return f.New(ctx, Env(env)) }
	}
	if f.Dump != nil {
		b.Dump = func(ctx context.Context, env backend.Env) (string, error) { return f.Dump(ctx, Env(env)) }
	}
	if f.Fail != nil {
		b.Fail = func(ctx context.Context, env backend.Env) (func() error, error) { return f.Fail(ctx, Env(env)) }
	}
	for _, feature := range f.Lacks {
		b.Lacks = append(b.Lacks, backend.Feature(feature))
	}
	return b
}
