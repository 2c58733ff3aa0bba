package localaddr

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// timeout is the time after which an address is given up, for example because its interface is down.
const timeout = time.Minute

// Await waits until an address that has been added to an interface of this thread's network namespace is local. The
// kernel adds the local route of an IPv6 address after the address, also without duplicate address detection; on a busy
// machine 60 ms later. A packet that comes before is forwarded, and lost.
func Await(addr netip.Addr) error {
	var err error
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var routes []netlink.Route
		routes, err = netlink.RouteGet(addr.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
	}
	return fmt.Errorf("address %v does not become local: %w", addr, err)
}
