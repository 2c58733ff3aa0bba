package dropin

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A brain that does not know the Nodes takes nothing back of what another one has told: fail-over to an older brain
// costs no node its connections to others.
func TestABrainThatSaysNothingOfNodesTakesNothingBack(t *testing.T) {
	r := newReached()
	text := func() string { return fmt.Sprint(r.addresses()) }
	r.setNodes([]netip.Addr{netip.MustParseAddr("192.0.2.2")}, true)
	<-r.changed
	r.setNodes(nil, false)
	require.Equal(t, "[192.0.2.2]", text())
	r.setNodes([]netip.Addr{netip.MustParseAddr("192.0.2.3")}, true)
	require.Equal(t, "[192.0.2.3]", text())
	r.setNodes(nil, true)
	require.Equal(t, "[]", text())
}
