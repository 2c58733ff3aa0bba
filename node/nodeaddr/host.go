package nodeaddr

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// HostAddress is an address of the host.
type HostAddress struct {
	// Addr is the address. Its zone is ignored, and an IPv4 address may be IPv4-mapped IPv6.
	Addr netip.Addr
	// Interface is the name of its network interface.
	Interface string
}

// Host is the source of the host's addresses.
type Host interface {
	// Addresses returns the host's current addresses.
	Addresses() ([]HostAddress, error)
	// Watch calls changed once as soon as it notices changes, and then after every change; several changes may be
	// combined. It returns nil when ctx ends, and an error if it cannot continue.
	Watch(ctx context.Context, changed func()) error
}

// Fake is a [Host] in memory, for tests. The zero value has no address. It is safe for concurrent use.
type Fake struct {
	mu       sync.Mutex
	addrs    []HostAddress
	watchers map[*func()]struct{}
}

var _ Host = (*Fake)(nil)

// Set replaces the addresses and notifies the watchers.
func (h *Fake) Set(addrs ...HostAddress) {
	h.mu.Lock()
	h.addrs = slices.Clone(addrs)
	var watchers []func()
	for w := range h.watchers {
		watchers = append(watchers, *w)
	}
	h.mu.Unlock()
	for _, changed := range watchers {
		changed()
	}
}

// Addresses implements [Host].
func (h *Fake) Addresses() ([]HostAddress, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.addrs), nil
}

// Watch implements [Host].
func (h *Fake) Watch(ctx context.Context, changed func()) error {
	h.mu.Lock()
	if h.watchers == nil {
		h.watchers = map[*func()]struct{}{}
	}
	h.watchers[&changed] = struct{}{}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, &changed)
	}()
	changed()
	<-ctx.Done()
	return nil
}
