package conntrack

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// deleteBatch is how many deletes go in one system call. The kernel answers those that fail with a message each, and what
// does not fit into the socket's buffer (208 KiB, about 1 KiB a message) is lost.
const deleteBatch = 128

// DeleteUDP implements [Table].
func (k *Kernel) DeleteUDP(ctx context.Context, family model.Family, stale func(Flow) bool) (deleted int, err error) {
	return k.deleteWith(ctx, family, udpFilter, stale)
}

// deleteWith asks for the flows that a filter lets through, and for all of them if the kernel cannot filter.
func (k *Kernel) deleteWith(ctx context.Context, family model.Family, filter func([]byte) []byte, stale func(Flow) bool) (deleted int, err error) {
	if !k.cannotFilter.Load() {
		deleted, err = k.deleteUDP(ctx, family, filter, stale)
		if !errors.Is(err, errRefused) {
			return deleted, err
		}
	}
	deleted, err = k.deleteUDP(ctx, family, nil, stale)
	if err == nil {
		k.cannotFilter.Store(true)
	}
	return deleted, err
}

// errRefused: the kernel refused the request for a dump as it is, so that no flow has been seen.
var errRefused = errors.New("the kernel refuses the dump")

func (k *Kernel) deleteUDP(ctx context.Context, family model.Family, filter func([]byte) []byte, stale func(Flow) bool) (deleted int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	dump, err := openSocket(ctx, k.NetNS)
	if err != nil {
		return 0, err
	}
	defer dump.close()
	deletes, err := openSocket(ctx, k.NetNS)
	if err != nil {
		return 0, err
	}
	defer deletes.close()

	if err := dump.send(dumpRequest(family, filter)); err != nil {
		return 0, fmt.Errorf("conntrack dump: %w", contextError(ctx, err))
	}
	batch := deleteRequests{family: family}
	flush := func() error {
		n, err := batch.send(deletes)
		deleted += n
		return contextError(ctx, err)
	}
	interrupted := false
	err = dump.receive(func(m message) (done bool, err error) {
		interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		switch m.kind {
		case unix.NLMSG_ERROR:
			if errors.Is(m.err(), unix.EINTR) {
				return true, m.err()
			}
			return true, fmt.Errorf("%w: %w", errRefused, m.err())
		case unix.NLMSG_DONE:
			return true, m.err()
		}
		e, ok := parseEntry(m.data)
		if !ok || !stale(e.flow) {
			return false, nil
		}
		if batch.add(e); batch.len() == deleteBatch {
			return false, flush()
		}
		return false, nil
	})
	if ferr := flush(); err == nil {
		err = ferr
	}
	switch {
	case err == nil && interrupted,
		errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS): // the kernel had to leave something out
		return deleted, ErrInterrupted
	case err != nil:
		return deleted, fmt.Errorf("conntrack dump: %w", contextError(ctx, err))
	}
	return deleted, nil
}

// contextError says that it is because of the context that a call on a socket failed, if it is.
func contextError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// deleteRequests are deletes to be sent in one system call.
type deleteRequests struct {
	family  model.Family
	buf     []byte
	offsets []int // of the messages in buf
}

func (d *deleteRequests) len() int { return len(d.offsets) }

func (d *deleteRequests) add(e entry) {
	before := len(d.buf)
	if d.buf = appendDelete(d.buf, d.family, e); len(d.buf) > before {
		d.offsets = append(d.offsets, before)
	}
}

// send sends what has been added and waits for the answers. It returns how many flows were deleted.
func (d *deleteRequests) send(s *socket) (deleted int, err error) {
	if len(d.offsets) == 0 {
		return 0, nil
	}
	defer func() { d.buf, d.offsets = d.buf[:0], d.offsets[:0] }()
	// Sequence numbers count from 1; only the last message is acknowledged if it succeeds, the others only if they fail.
	for i, offset := range d.offsets {
		setSequence(d.buf[offset:], uint32(i+1))
	}
	last := d.offsets[len(d.offsets)-1]
	setFlags(d.buf[last:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := s.send(d.buf); err != nil {
		return 0, fmt.Errorf("deleting conntrack entries: %w", err)
	}
	failed := 0
	var errs []error
	err = s.receive(func(m message) (done bool, _ error) {
		if err := m.err(); err != nil {
			failed++
			// What is gone already, or another flow by now, needs no delete.
			if !errors.Is(err, syscall.ENOENT) && len(errs) == 0 {
				errs = append(errs, fmt.Errorf("deleting a conntrack entry: %w", err))
			}
		}
		return m.sequence == uint32(len(d.offsets)), nil
	})
	return len(d.offsets) - failed, errors.Join(append(errs, err)...)
}
