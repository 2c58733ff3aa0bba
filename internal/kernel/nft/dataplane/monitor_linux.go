package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// monitor listens to the kernel's notifications of nftables changes, and notes which of the watched tables another
// program changed.
type monitor struct {
	conn  *nfnetlink.Conn
	own   uint32 // the port of our own socket, whose changes are ours
	drift chan struct{}
	done  chan struct{}

	pending bool // the batch being reported touches a watched table; for run alone

	mu     sync.Mutex
	seen   uint32        // the latest generation that was reported
	news   chan struct{} // closed and replaced when seen changes
	tables map[TableKey]bool
}

func newMonitor(own uint32) (*monitor, error) {
	c, err := dial(true)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn: c, own: own, drift: make(chan struct{}, 1), done: make(chan struct{}),
		news: make(chan struct{}), tables: map[TableKey]bool{}}
	if err := c.Join(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	go m.run()
	return m, nil
}

func (m *monitor) close() error {
	err := m.conn.Close()
	<-m.done
	return err
}

// watch starts to record changes of a table.
func (m *monitor) watch(key TableKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.tables[key]; !ok {
		m.tables[key] = false
	}
}

// seenNow marks the table, which is about to be read, as unchanged.
func (m *monitor) seenNow(key TableKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tables[key] = false
}

func (m *monitor) drifted(key TableKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tables[key]
}

// suspectAll marks all tables as changed: it is not known which ones were.
func (m *monitor) suspectAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.tables {
		m.tables[key] = true
	}
	m.tell()
}

// sawUntil marks all changes up to a generation as reported.
func (m *monitor) sawUntil(generation uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if int32(generation-m.seen) > 0 || m.seen == 0 {
		m.seen = generation
		close(m.news)
		m.news = make(chan struct{})
	}
}

func (m *monitor) tell() {
	select {
	case m.drift <- struct{}{}:
	default:
	}
}

// waitFor waits until the changes up to a generation have been reported. It returns false if that does not happen: they
// are reported right after they were made, so something was lost then.
func (m *monitor) waitFor(ctx context.Context, generation uint32) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		m.mu.Lock()
		seen, news := m.seen, m.news
		m.mu.Unlock()
		if int32(seen-generation) >= 0 {
			return true
		}
		select {
		case <-news:
		case <-ctx.Done():
			return false
		}
	}
}

func (m *monitor) run() {
	defer close(m.done)
	for {
		b, err := m.conn.Wait()
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil: // ENOBUFS: more happened than the socket could hold
			m.suspectAll()
		default:
			if nfnetlink.Messages(b, func(msg nfnetlink.Message) error { m.note(msg); return nil }) != nil {
				m.suspectAll()
			}
		}
	}
}

// note records one message. Those about what a transaction changed come before the one with its generation.
func (m *monitor) note(msg nfnetlink.Message) {
	if msg.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(msg.Data) < 4 {
		return
	}
	if msg.Type&0xff == unix.NFT_MSG_NEWGEN {
		m.sawUntil(nfnetlink.GenerationOf(msg))
		if m.pending {
			m.pending = false
			m.tell()
		}
		return
	}
	if msg.Port == m.own {
		return
	}
	key := TableKey{Family: model.IPv4}
	switch msg.Data[0] {
	case unix.NFPROTO_IPV6:
		key.Family = model.IPv6
	case unix.NFPROTO_IPV4:
	default:
		return
	}
	// The first attribute of every kind of message is the name of the table.
	if b := msg.Data[4:]; len(b) >= 4 && binary.NativeEndian.Uint16(b[2:]) == unix.NFTA_TABLE_NAME {
		key.Name = nfnetlink.CString(b[4:min(int(binary.NativeEndian.Uint16(b)), len(b))])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.tables[key]; ok {
		m.tables[key] = true
		m.pending = true
	}
}
