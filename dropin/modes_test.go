package dropin

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// arguments are those that tests usually start the program with: without pauses, and in a mode of this operating
// system.
var arguments = append(ownMode(), "--iptables-min-sync-period=0", "--cluster-cidr=10.244.0.0/16")

func ownMode() []string {
	if runtime.GOOS == "windows" {
		return []string{"--proxy-mode=kernelspace", "--network-name=" + hnsNetwork}
	}
	return []string{"--proxy-mode=nftables"}
}

// hnsNetwork is the HNS network of the fake machine.
const hnsNetwork = "cbr0"

// nameOfOwnMode is the mode of arguments.
func nameOfOwnMode() string { return strings.TrimPrefix(arguments[0], "--proxy-mode=") }

// waitServed waits until the service of cluster() is served in that mode.
func (r *rig) waitServed(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "windows" {
		r.waitFor(t, tableIPv4, contains("10.244.1.5"))
		return
	}
	require.Eventually(t, func() bool {
		select {
		case <-r.ended:
			t.Fatal("the program ended before the service was served:\n", r.hns.Dump(), r.logged())
		default:
		}
		return strings.Contains(r.hns.Dump(), "load balancer 10.96.0.10:80/TCP")
	}, time.Minute, time.Millisecond)
}

// needModesOfLinux skips tests of what modes of Linux do, which are refused on Windows.
func needModesOfLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("this is about a mode of Linux, which is refused here")
	}
}
