package conformance

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Clients get their source ports out of ranges that collide with nothing, this many altogether.
const sourcePorts = 45000

// sourcePort returns the n-th source port.
func sourcePort(n int) uint16 {
	if n < 20000 {
		return uint16(10000 + n)
	}
	return uint16(40000 + n - 20000)
}

// portAllocator hands out source ports. Flows that are under way at the same time have different ones, whatever their
// source: else they could be masqueraded to the same address and port at the same moment, and the kernel would drop one of
// the packets. And no two connections with the same addresses, ports and protocol come within the time for which the kernel
// may remember the first one: a flow is always new.
type portAllocator struct {
	mu   sync.Mutex
	next int
	used map[connectionKey]time.Time
}

type connectionKey struct {
	source   netip.Addr
	port     uint16
	to       netip.AddrPort
	protocol model.Protocol
}

// rememberedFor is longer than connection tracking keeps any entry of a connection that these tests have closed.
const rememberedFor = 3 * time.Minute

func newPortAllocator() *portAllocator {
	return &portAllocator{used: map[connectionKey]time.Time{}}
}

// take returns a source port for a new connection.
func (a *portAllocator) take(source netip.Addr, to netip.AddrPort, protocol model.Protocol) (uint16, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range sourcePorts {
		port := sourcePort(a.next)
		a.next = (a.next + 1) % sourcePorts
		key := connectionKey{source, port, to, protocol}
		if last, ok := a.used[key]; !ok || time.Since(last) > rememberedFor {
			a.used[key] = time.Now()
			return port, nil
		}
	}
	return 0, fmt.Errorf("all %d source ports of %v have been used for %v/%v", sourcePorts, source, to, protocol)
}
