package nodeaddr

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// HostAddress is an address of the host.
type HostAddress struct {
	// Addr is one address. Its zone is ignored, and an IPv4 address may be in IPv6-mapped form.
	Addr netip.Addr
	// Interface is the name of its network interface.
	Interface string
}

// Host is the source of the host's addresses. [System] is the real one, [Fake] is for tests.
type Host interface {
	// Addresses returns the addresses that the host has now.
	Addresses() ([]HostAddress, error)
	// Watch calls changed once as soon as later changes will be noticed, and then after every change; several changes
	// may be combined. It returns nil when ctx ends, and an error if it cannot go on.
	Watch(ctx context.Context, changed func()) error
}

// combined returns a function that makes another goroutine call f, at once or, if f is running, once more after that.
// It does not wait, so a burst of thousands of changes is not delayed by as many calls of f. stop waits until the last
// call of f has returned.
func combined(f func()) (call, stop func()) {
	due, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for range due {
			f()
		}
	}()
	call = func() {
		select {
		case due <- struct{}{}:
		default: // it is about to be called anyway
		}
	}
	return call, func() {
		close(due)
		<-done
	}
}

// Fake is a [Host] in memory, for tests. The zero value has no address. It is safe for concurrent use.
type Fake struct {
	mu       sync.Mutex
	addrs    []HostAddress
	readErr  error
	watchers map[*func()]context.CancelCauseFunc
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

// Fail makes Addresses return an error, until it is called with nil.
func (h *Fake) Fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readErr = err
}

// Break makes all current calls of Watch return an error.
func (h *Fake) Break(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cancel := range h.watchers {
		cancel(err)
	}
}

// Addresses implements [Host].
func (h *Fake) Addresses() ([]HostAddress, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.addrs), h.readErr
}

// Watch implements [Host].
func (h *Fake) Watch(ctx context.Context, changed func()) error {
	broken, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.mu.Lock()
	if h.watchers == nil {
		h.watchers = map[*func()]context.CancelCauseFunc{}
	}
	h.watchers[&changed] = cancel
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, &changed)
	}()
	changed()
	<-broken.Done()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(broken)
}
