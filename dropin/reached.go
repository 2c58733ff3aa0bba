package dropin

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// reached are the addresses at which this program reaches API servers, or brains, by whatever name, and a proxy on the
// way to them. Mode ipvs must not make one of them the node's own (S63).
type reached struct {
	changed chan struct{} // receives a value when there is another one

	mu   sync.Mutex
	list []netip.Addr // that used last at the end; never changed
}

// maxReached is how many addresses are remembered: those of load balancers change every few hours.
const maxReached = 64

func newReached() *reached { return &reached{changed: make(chan struct{}, 1)} }

// add adds an address.
func (r *reached) add(a netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.list, a)
	switch {
	case i >= 0 && i == len(r.list)-1:
		return
	case i >= 0:
		r.list = append(slices.Concat(r.list[:i], r.list[i+1:]), a)
		return
	case len(r.list) == maxReached:
		r.list = r.list[1:]
	}
	r.list = append(slices.Clip(r.list), a)
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// addresses returns the addresses.
func (r *reached) addresses() []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list
}

// dial connects like client-go. An address counts before it answers: the node may be unable to reach it because a
// service has it.
func (r *reached) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			if a, err := netip.ParseAddrPort(address); err == nil {
				r.add(a.Addr().Unmap().WithZone(""))
			}
			return nil
		}}
	return d.DialContext(ctx, network, address)
}
