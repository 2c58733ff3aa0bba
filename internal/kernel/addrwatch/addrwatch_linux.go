package addrwatch

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Subscription is a subscription to address changes. Close it after use, even if it has failed.
type Subscription struct {
	// Updates has the changes since Subscribe. It is closed when the subscription fails, for example because the socket's
	// buffer overflowed; then Err returns the reason.
	Updates <-chan netlink.AddrUpdate

	done    chan struct{}
	failure error // written before Updates is closed
}

// Subscribe subscribes to changes in the network namespace with this file descriptor; 0 means the calling thread's.
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

// Err returns the reason why Updates was closed. Call it only after that.
func (s *Subscription) Err() error {
	return fmt.Errorf("waiting for changes of addresses: %w", s.failure)
}

// Close ends the subscription.
func (s *Subscription) Close() {
	close(s.done)
	for range s.Updates { // drain until the sender notices and closes the channel
	}
}

// Dump calls list, which lists something of the kernel, again if that has changed meanwhile, up to the given number of
// calls.
func Dump(most int, list func() error) (err error) {
	for range most {
		if err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return err
}
