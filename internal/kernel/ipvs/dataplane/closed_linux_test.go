package dataplane

import (
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A Sync may still run while its backend is closed. By then another file may have the descriptor of the network
// namespace. This needs no IPVS.
func TestAKernelThatIsClosedDoesNothing(t *testing.T) {
	testkit.EnterNamespace(t) // following addresses in a namespace takes root
	k, err := openLink("none")
	require.NoError(t, err)
	require.NoError(t, k.Close())
	require.NoError(t, k.Close(), "a second time")
	_, err = k.Servers(t.Context())
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = k.Addresses(t.Context(), model.IPv4)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, k.AddAddress(t.Context(), netip.MustParseAddr("192.0.2.1")), os.ErrClosed)
	require.ErrorIs(t, k.DeleteLink(t.Context()), os.ErrClosed)
}
