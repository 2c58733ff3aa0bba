package nodeaddr

import (
	"context"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/internal/nodeports"
)

// HostAddress is an address of the host: Addr, and the name of its Interface.
type HostAddress = nodeports.HostAddress

// Host is the source of the host's addresses. [System] is the real one, [Fake] is for tests. Its Addresses returns what
// the host has now, and Watch calls a function once as soon as later changes will be noticed, and then after every
// change.
type Host = nodeports.Host

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
