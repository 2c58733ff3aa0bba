package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/nfnetlink"
)

// Netlink is the kernel's nftables, in the network namespace of the thread that made it.
type Netlink struct {
	mu         sync.Mutex
	conn       *nfnetlink.Conn
	generation uint32 // of the ruleset: what it is as far as is known here
	monitor    *monitor
}

var _ Interface = (*Netlink)(nil)

// Batches are one message to the socket, which must be able to hold it: 30,000 services with 10 endpoints each are 15
// MB. Nothing is allocated until it is needed.
const (
	sendBuffer = 256 << 20
	recvBuffer = 16 << 20
)

func dial() (*nfnetlink.Conn, error) {
	return nfnetlink.Dial(nfnetlink.Config{SendBuffer: sendBuffer, ReceiveBuffer: recvBuffer})
}

// NewNetlink opens the kernel's nftables. The process needs CAP_NET_ADMIN over the network namespace. Close it in the
// end.
func NewNetlink() (*Netlink, error) {
	c, err := dial()
	if err != nil {
		return nil, fmt.Errorf("nf_tables: %w", err)
	}
	n := &Netlink{conn: c}
	if n.monitor, err = newMonitor(c.Port()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if n.generation, err = n.conn.Generation(); err != nil {
		return nil, errors.Join(fmt.Errorf("nf_tables: %w", err), n.Close())
	}
	n.monitor.sawUntil(n.generation)
	return n, nil
}

// Close implements [Interface].
func (n *Netlink) Close() error {
	return errors.Join(n.monitor.close(), n.conn.Close())
}

// Drift implements [Interface].
func (n *Netlink) Drift() <-chan struct{} { return n.monitor.drift }

// Drifted implements [Interface].
func (n *Netlink) Drifted(key TableKey) bool { return n.monitor.drifted(key) }

// quietSize is the number of elements from which on a transaction is applied with nobody listening: the kernel writes a
// message about each element to those who listen to changes, which makes big transactions several times slower.
const quietSize = 1000

// Apply implements [Interface].
func (n *Netlink) Apply(ctx context.Context, tx *Transaction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil || tx.IsEmpty() {
		return err
	}
	n.monitor.watch(tx.Table)
	b, err := encodeBatch(tx, n.generation, true) // before the pause, which is to be short
	if err != nil {
		return err
	}
	if tx.Elements() >= quietSize {
		if err := n.monitor.conn.Leave(unix.NFNLGRP_NFTABLES); err != nil {
			return err
		}
		defer func() {
			// What happened in between is only known if the generation says that it was this alone.
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
		err := n.applyOnce(tx, b)
		if !errors.Is(err, unix.ERESTART) {
			return err
		}
		// The ruleset is another one. Find out whether it is this table that was changed.
		if n.generation, err = n.conn.Generation(); err != nil {
			return err
		}
		if !tx.Unconditional && !n.monitor.waitFor(ctx, n.generation) {
			n.monitor.suspectAll() // what was not reported may be about any table
			return ErrStale
		}
	}
	return fmt.Errorf("table %v: other tables change all the time: %w", tx.Table, unix.ERESTART)
}

func (n *Netlink) applyOnce(tx *Transaction, b *batch) error {
	b.setGeneration(n.generation)
	if err := n.send(tx, b); err != nil {
		return err
	}
	if err := n.answer(tx, b); err != nil {
		return err
	}
	n.generation++
	return nil
}

// Check implements [Interface]: the batch has no end, at which the kernel takes it back after it has checked it.
func (n *Netlink) Check(ctx context.Context, tx *Transaction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil || tx.IsEmpty() {
		return err
	}
	b, err := encodeBatch(tx, 0, false)
	if err != nil {
		return err
	}
	if err := n.send(tx, b); err != nil {
		return err
	}
	return n.answer(tx, b)
}

func (n *Netlink) send(tx *Transaction, b *batch) error {
	if err := n.conn.Send(b.Buf); err != nil {
		return fmt.Errorf("table %v: sending %d bytes: %w", tx.Table, len(b.Buf), err)
	}
	return nil
}

// answer reads what the kernel says to a batch: the acknowledgement of its last operation, or errors, of which the
// first is returned. If the batch as a whole fails, the error is about the message that begins it.
func (n *Netlink) answer(tx *Transaction, b *batch) error {
	var failed error
	acknowledged := false
	err := n.conn.Answers(func(m nfnetlink.Message) error {
		if m.Type != unix.NLMSG_ERROR || m.Seq == 0 || m.Seq > b.Seq {
			return nil
		}
		errno, hint := m.Failure()
		if errno == 0 {
			acknowledged = true
		} else if failed == nil {
			failed = opError(tx, b, m.Seq, errno, hint)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("table %v: %w", tx.Table, err)
	}
	if failed == nil && !acknowledged {
		return fmt.Errorf("table %v: the kernel did not answer", tx.Table)
	}
	return failed
}

func opError(tx *Transaction, b *batch, seq uint32, errno syscall.Errno, hint string) error {
	name := "commit"
	if i := b.opOf(seq); i >= 0 {
		name = tx.ops[i].String()
	}
	return &OpError{Table: tx.Table, Op: name, Err: errno, Hint: hint}
}
