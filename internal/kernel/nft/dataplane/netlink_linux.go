package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
)

// Netlink is the kernel's nftables, in the network namespace of the thread that made it.
type Netlink struct {
	mu         sync.Mutex
	conn       *nfnetlink.Conn
	generation uint32 // of the ruleset, as last seen here
	monitor    *monitor
	readers    *nfnetlink.Readers
}

var _ Interface = (*Netlink)(nil)

// A batch is one message to the socket, whose buffer must hold it: 30,000 services with 10 endpoints each are 15 MB.
// The memory is allocated only when needed.
const (
	sendBuffer = 256 << 20
	recvBuffer = 16 << 20
)

func dial(waits bool) (*nfnetlink.Conn, error) {
	return nfnetlink.Dial(nfnetlink.Config{SendBuffer: sendBuffer, ReceiveBuffer: recvBuffer, Waits: waits})
}

// NewNetlink opens the kernel's nftables. The process needs CAP_NET_ADMIN over the network namespace. Close it after
// use.
func NewNetlink() (*Netlink, error) {
	c, err := dial(false)
	if err != nil {
		return nil, fmt.Errorf("nf_tables: %w", err)
	}
	n := &Netlink{conn: c, readers: nfnetlink.OpenReaders()}
	if n.monitor, err = newMonitor(c.Port()); err != nil {
		return nil, errors.Join(err, n.readers.Close(), c.Close())
	}
	if n.generation, err = n.conn.Generation(); err != nil {
		return nil, errors.Join(fmt.Errorf("nf_tables: %w", err), n.Close())
	}
	n.monitor.sawUntil(n.generation)
	return n, nil
}

// Close implements [Interface].
func (n *Netlink) Close() error {
	return errors.Join(n.monitor.close(), n.readers.Close(), n.conn.Close())
}

// Yield implements [Interface].
func (n *Netlink) Yield() time.Duration { return n.readers.Wait(time.Now()) }

// Drift implements [Interface].
func (n *Netlink) Drift() <-chan struct{} { return n.monitor.drift }

// Drifted implements [Interface].
func (n *Netlink) Drifted(key TableKey) bool { return n.monitor.drifted(key) }

// quietSize is the number of operations and elements above which we do not listen while a transaction is applied: the
// kernel writes a message about each to its listeners, which makes big transactions several times slower.
const quietSize = 1000

// isBig reports whether the monitor should not listen while the transaction is applied.
func (t *Transaction) isBig() bool { return len(t.ops)+t.Elements() >= quietSize }

// Apply implements [Interface].
func (n *Netlink) Apply(ctx context.Context, tx *Transaction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil || tx.IsEmpty() {
		return err
	}
	n.monitor.watch(tx.Table)
	b, err := encodeBatch(tx, true) // before the pause, to keep that short
	if err != nil {
		return err
	}
	if tx.isBig() {
		if err := n.monitor.conn.Leave(unix.NFNLGRP_NFTABLES); err != nil {
			return err
		}
		defer func() {
			// The generation says whether other programs changed anything meanwhile.
			err := n.monitor.conn.Join(unix.NFNLGRP_NFTABLES)
			g, genErr := n.conn.Generation()
			if err != nil || genErr != nil || g != n.generation {
				n.monitor.suspectAll()
			}
			n.monitor.sawUntil(g)
		}()
	}
	for range 10 {
		if !tx.Unconditional && n.monitor.drifted(tx.Table) {
			return ErrStale
		}
		b.setGeneration(n.generation)
		err := n.exchange(tx, b)
		if err == nil {
			n.generation++
		}
		if !errors.Is(err, unix.ERESTART) {
			return err
		}
		// The ruleset has changed. Find out whether this table has.
		if n.generation, err = n.conn.Generation(); err != nil {
			return err
		}
		if !tx.Unconditional && !n.monitor.waitFor(ctx, n.generation) {
			n.monitor.suspectAll() // what was not reported may be about any table
			return ErrStale
		}
	}
	return fmt.Errorf("table %v: other tables keep changing: %w", tx.Table, unix.ERESTART)
}

// Check implements [Interface]: the batch lacks its end message, so the kernel checks it and then reverts it.
func (n *Netlink) Check(ctx context.Context, tx *Transaction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil || tx.IsEmpty() {
		return err
	}
	b, err := encodeBatch(tx, false)
	if err != nil {
		return err
	}
	return n.exchange(tx, b)
}

// exchange sends a batch and reads the kernel's replies: the acknowledgement of its last operation, or errors, of which
// the first is returned. If the batch as a whole fails, the error is about the message that begins it.
func (n *Netlink) exchange(tx *Transaction, b *batch) error {
	if err := n.conn.Send(b.Buf); err != nil {
		return fmt.Errorf("table %v: sending %d bytes: %w", tx.Table, len(b.Buf), err)
	}
	var failed error
	answered := false
	err := n.conn.Answers(func(m nfnetlink.Message) error {
		if m.Type != unix.NLMSG_ERROR || m.Seq == 0 || m.Seq > b.Seq || failed != nil {
			return nil //nolint:nilerr // the first failure counts; it is returned at the end
		}
		answered = true
		if errno, hint := m.Failure(); errno != 0 {
			failed = tx.failed(b.opOf(m.Seq), errno, hint)
		}
		return nil
	})
	if err == nil && !answered {
		err = errors.New("the kernel did not answer")
	}
	if err != nil {
		return fmt.Errorf("table %v: %w", tx.Table, err)
	}
	return failed
}
