package network

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// The number of source ports of clients. Their ranges contain no reserved port.
const (
	portsBelow  = FirstReservedPort - 1024
	sourcePorts = portsBelow + 65536 - EndOfReservedPorts
)

// sourcePort returns the n-th source port.
func sourcePort(n int) uint16 {
	if n < portsBelow {
		return uint16(1024 + n)
	}
	return uint16(EndOfReservedPorts + n - portsBelow)
}

// portAllocator allocates source ports in a random order that the seed determines. Concurrent flows get different
// ports, whatever their source: otherwise masquerading could map them to the same address and port, and the kernel
// would drop a packet. A combination of addresses, ports and protocol is not reused while connection tracking may have
// an entry for it, so every flow is new.
type portAllocator struct {
	mu           sync.Mutex
	next, stride int
	used         map[connectionKey]time.Time
}

type connectionKey struct {
	source   netip.Addr
	port     uint16
	to       netip.AddrPort
	protocol model.Protocol
}

// rememberedFor is longer than connection tracking keeps the entry of a closed connection.
const rememberedFor = 3 * time.Minute

func newPortAllocator(seed uint64) *portAllocator {
	rng := rand.New(rand.NewPCG(seed, 0))
	a := &portAllocator{used: map[connectionKey]time.Time{}, next: rng.IntN(sourcePorts)}
	for a.stride == 0 || greatestCommonDivisor(a.stride, sourcePorts) != 1 {
		a.stride = 1 + rng.IntN(sourcePorts-1)
	}
	return a
}

// A stride that is coprime to the number of ports visits every port once before any is repeated.
func greatestCommonDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// anyPort is the range of all source ports.
var anyPort = PortBand{1024, 65535}

// PortBands divide the source ports, without the reserved ones, into sixteen ranges.
func PortBands() []PortBand {
	var bands []PortBand
	for first := 0; first < 65536; first += 4096 {
		b := PortBand{uint16(max(first, 1024)), uint16(first + 4095)}
		if b.first < FirstReservedPort && b.last >= FirstReservedPort {
			b.last = FirstReservedPort - 1
		}
		if b.first >= FirstReservedPort && b.last < EndOfReservedPorts {
			continue
		}
		bands = append(bands, b)
	}
	return bands
}

// take returns a source port for a new connection.
func (a *portAllocator) take(source netip.Addr, to netip.AddrPort, protocol model.Protocol, band PortBand,
) (uint16, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range sourcePorts {
		port := sourcePort(a.next)
		a.next = (a.next + a.stride) % sourcePorts
		if port < band.first || port > band.last || slices.Contains(ServerPorts(), port) {
			continue
		}
		key := connectionKey{source, port, to, protocol}
		if last, ok := a.used[key]; !ok || time.Since(last) > rememberedFor {
			a.used[key] = time.Now()
			return port, nil
		}
	}
	return 0, fmt.Errorf("all source ports of %v from %d to %d have been used for %v/%v",
		source, band.first, band.last, to, protocol)
}
