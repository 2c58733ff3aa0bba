package cluster

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// Relay makes the API server reachable from another network namespace: it listens there and dials here.
type Relay struct {
	Port int // on the loopback interface of the other namespace

	target string
	do     func(func() error) // runs a function in the other network namespace
	relay  *testkit.Relay     // nil while not listening
}

// Relay starts a relay to the API server. do runs a function in the other network namespace. The relay stops at the end
// of the test.
func (c *Cluster) Relay(t testing.TB, do func(func() error)) *Relay {
	t.Helper()
	r := &Relay{target: c.address(), do: do}
	r.Restore()
	require.NotNil(t, r.relay)
	t.Cleanup(r.Refuse)
	return r
}

// Cut closes all connections and, until Restore, every new one: the API server seems down, but its machine answers.
func (r *Relay) Cut() {
	if r.relay != nil {
		r.relay.Block()
	}
}

// Refuse is like Cut, but also stops listening until Restore.
func (r *Relay) Refuse() {
	if r.relay != nil {
		r.relay.Close()
		r.relay = nil
	}
}

// Restore undoes Cut and Refuse.
func (r *Relay) Restore() {
	if r.relay != nil {
		r.relay.Unblock()
		return
	}
	r.do(func() error {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", r.Port)) // any free port at first
		if err != nil {
			return err
		}
		r.Port = listener.Addr().(*net.TCPAddr).Port
		r.relay = testkit.NewRelay(listener, "tcp", r.target, nil)
		return nil
	})
}
