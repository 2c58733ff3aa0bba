package mynft_test

import (
	"context"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/mynft"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func factory() conformance.Factory {
	return conformance.Factory{
		New: func(_ context.Context, env conformance.Env) (sink.Sink, error) {
			return mynft.New(env.NodePortAddresses)
		},
		Cleanup: func(ctx context.Context, _ conformance.Env) error { return mynft.Cleanup(ctx) },
		Dump:    func(ctx context.Context, _ conformance.Env) (string, error) { return mynft.Dump(ctx) },
		Lacks: []conformance.Feature{
			conformance.SessionAffinity,
			conformance.LoopbackNodePorts,
			conformance.UnusedAddresses,
			conformance.StaleFlows,
		},
		Waives: []string{"node ports follow the addresses of the host"},
	}
}

func TestConformance(t *testing.T) {
	need.Program(t, "nft")
	conformance.Test(t, factory())
}

func TestRandomStates(t *testing.T) {
	need.Program(t, "nft")
	conformance.Random(t, factory(), 1, 30)
}
