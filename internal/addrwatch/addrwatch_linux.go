package addrwatch

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Subscription is a subscription to changes of addresses. Close it after use, also after it has failed.
type Subscription struct {
	// Updates has the changes since Subscribe. It is closed when the subscription fails, for example because more
	// changed than the socket could hold; then Err says why.
	Updates <-chan netlink.AddrUpdate

	done    chan struct{}
	failure error // written before Updates is closed
}

// Subscribe subscribes to changes in the network namespace with a file descriptor; 0: the calling thread's.
func Subscribe(ns int) (*Subscription, error) {
	updates := make(chan netlink.AddrUpdate)
	s := &Subscription{Updates: updates, done: make(chan struct{})}
	options := netlink.AddrSubscribeOptions{ErrorCallback: func(err error) { s.failure = err }}
	if ns != 0 {
		handle := netns.NsHandle(ns)
		options.Namespace = &handle
	}
	if err := netlink.AddrSubscribeWithOptions(updates, s.done, options); err != nil {
		return nil, fmt.Errorf("subscribing to changes of addresses: %w", err)
	}
	return s, nil
}

// Err returns why Updates was closed. Call it only then.
func (s *Subscription) Err() error {
	return fmt.Errorf("waiting for changes of addresses: %w", s.failure)
}

// Close ends the subscription.
func (s *Subscription) Close() {
	close(s.done)
	for range s.Updates { // the sender ends once it notices; until then something has to receive what it still sends
	}
}
