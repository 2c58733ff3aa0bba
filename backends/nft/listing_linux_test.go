package nft_test

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A listing begins again whenever a transaction is committed meanwhile. Beside a backend that yields it comes to its
// end all the same, even if there is always another change to apply.
func TestTheRulesetCanBeListedBesideChangesThatDoNotEnd(t *testing.T) {
	program := need.Program(t, "nft")
	testkit.EnterNamespace(t)
	size := backendtest.ClusterSize{Services: 3000, Endpoints: 10}
	b := newBackend(t, nft.Options{})
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	for i := range size.Services {
		b.SetService(size.Service(i))
		for j := range size.Endpoints {
			b.SetEndpoint(size.Endpoint(i, j))
		}
	}
	require.NoError(t, b.Sync(t.Context()))

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	listing := exec.CommandContext(ctx, program, "list", "ruleset")
	require.NoError(t, listing.Start())
	ended := make(chan error, 1)
	go func() { ended <- listing.Wait() }()
	for n := 0; ; n++ {
		if wait := b.Yield(); wait > 0 { // as Run does
			time.Sleep(wait)
		} else {
			e := size.Endpoint(n%size.Services, 3)
			if n/size.Services%2 == 0 {
				b.DeleteEndpoint(e.Key())
			} else {
				b.SetEndpoint(e)
			}
			require.NoError(t, b.Sync(t.Context()))
		}
		select {
		case err := <-ended:
			require.NoError(t, err, "the listing came to no end in three minutes beside %d Syncs", n)
			return
		default:
		}
	}
}
