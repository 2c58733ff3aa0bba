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
	// nodes are the addresses of other nodes that a brain tells; known: it does. told: a brain has been reached.
	nodes       []netip.Addr
	known, told bool
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
	r.notify()
}

// notify is called with the lock held.
func (r *reached) notify() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// setNodes replaces what a brain tells of other nodes. If it does not know them, those that another brain has told
// stay: at an address that is no node's any more, all that is lost is what is not for a service's port.
func (r *reached) setNodes(list []netip.Addr, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !known {
		list = r.nodes
	}
	if !r.told || r.known != known || !slices.Equal(r.nodes, list) {
		r.notify()
	}
	r.nodes, r.known, r.told = list, known, true
}

// toldNodes reports whether a brain has been reached, and whether it knows the addresses of other nodes.
func (r *reached) toldNodes() (told, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told, r.known
}

// addresses returns the addresses, those of other nodes as well.
func (r *reached) addresses() []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.nodes) == 0 {
		return r.list
	}
	return slices.Concat(r.list, r.nodes)
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
