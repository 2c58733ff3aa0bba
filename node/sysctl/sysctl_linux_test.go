package sysctl

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// The parameters that belong to a network namespace, in one.
func TestConntrackInANamespace(t *testing.T) {
	ns := testkit.NewNamespace(t)
	var root Root
	before, err := root.Get(netfilter + "udp_timeout")
	require.NoError(t, err)
	wantGot := map[string]string{
		"tcp_timeout_established": "7777", "tcp_timeout_close_wait": "333", "udp_timeout": "22",
		"udp_timeout_stream": "99", "tcp_be_liberal": "1",
	}
	c := Conntrack{TCPEstablishedTimeout: 7777 * time.Second, TCPCloseWaitTimeout: 333 * time.Second,
		UDPTimeout: 22 * time.Second, UDPStreamTimeout: 99 * time.Second, TCPBeLiberal: true}
	ns.Do(func() error {
		for range 2 { // the second time there is nothing to do
			if err := c.Apply(t.Context(), root); err != nil {
				return err
			}
		}
		for name, want := range wantGot {
			if got, err := root.Get(netfilter + name); err != nil || got != want {
				return fmt.Errorf("%s is %q, not %q: %w", name, got, want, err)
			}
		}
		return nil
	})
	after, err := root.Get(netfilter + "udp_timeout")
	require.NoError(t, err)
	require.Equal(t, before, after, "of this process's own namespace")
}

// The maximum is the machine's: another network namespace, such as that of a container, sees it read-only.
func TestAReadOnlyMaximumThatIsHighEnoughIsNoError(t *testing.T) {
	ns := testkit.NewNamespace(t)
	var root Root
	ns.Do(func() error {
		info, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o222 != 0 {
			return nil // this kernel has one for each namespace: nothing to be seen here
		}
		// Few enough for the present size of the hash table.
		if err := (Conntrack{MaxPerCore: 1024, CPUs: 1, UDPTimeout: 21 * time.Second}).
			Apply(t.Context(), root); err != nil {
			return err
		}
		if got, err := root.Get(netfilter + "udp_timeout"); got != "21" {
			return fmt.Errorf("the rest is not set: %q, %w", got, err)
		}
		return nil
	})
}
