package backendtest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Fake is the fake dataplane of a backend.
type Fake interface {
	Dump() string
	Fail(err error)
}

// AFakeFails tests that a backend on a fake fails as Fake.Fail says, and succeeds afterwards.
func AFakeFails(t *testing.T, b Backend, fake Fake) {
	t.Helper()
	defer func() { require.NoError(t, b.Close()) }()
	before := fake.Dump()
	size := ClusterSize{Services: 2, Endpoints: 1}
	b.SetNode(size.Node())
	b.SetService(size.Service(1))
	b.SetEndpoint(size.Endpoint(1, 0)) // on another node
	broken := errors.New("made to fail")
	fake.Fail(broken)
	for range 3 {
		require.ErrorIs(t, b.Sync(t.Context()), broken)
		require.Equal(t, before, fake.Dump(), "nothing has changed")
		b.(sink.FailureResyncer).ResyncFailed() // as a run does
	}
	fake.Fail(nil)
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, fake.Dump(), size.Service(1).ClusterIPs[0].String())
}
