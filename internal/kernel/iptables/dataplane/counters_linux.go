package dataplane

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
)

// counters are the kernel's nfacct objects of a namespace, which rules name with the match nfacct. Both variants, and
// both families, share them.
type counters struct {
	mu   sync.Mutex // not that of the programs: a metric does not wait for iptables-restore
	conn *nfnetlink.Conn
	err  error // why there is no conn; everything else works
}

// The messages and attributes of nfnetlink_acct.h.
const (
	acctNew = unix.NFNL_SUBSYS_ACCT << 8
	acctGet = unix.NFNL_SUBSYS_ACCT<<8 | 1
	acctDel = unix.NFNL_SUBSYS_ACCT<<8 | 3

	acctName    = 1 // NFACCT_NAME
	acctPackets = 2 // NFACCT_PKTS
)

// The kernel destroys the rules of nf_tables some time after they are deleted, and until then a counter is in use.
const (
	inUseTries = 20
	inUsePause = 10 * time.Millisecond
)

// openCounters opens a socket in the namespace of the thread.
func openCounters() *counters {
	conn, err := nfnetlink.Dial(nfnetlink.Config{})
	return &counters{conn: conn, err: err}
}

func (c *counters) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

func (c *counters) ensure(name string) error {
	_, err := c.ask(acctNew, unix.NLM_F_CREATE|unix.NLM_F_ACK, name)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func (c *counters) packets(name string) (uint64, error) { return c.ask(acctGet, 0, name) }

func (c *counters) remove(name string) (err error) {
	if c.conn == nil {
		return nil // it created none
	}
	for range inUseTries {
		_, err = c.ask(acctDel, unix.NLM_F_ACK, name)
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(inUsePause)
	}
	switch {
	case errors.Is(err, unix.ENOENT), // it is gone
		errors.Is(err, unix.EINVAL), // the kernel has no such objects
		errors.Is(err, unix.EBUSY):  // others use it, for example rules of the other family
		return nil
	}
	return err
}

// ask sends a request and returns the number of packets in the answer, if it has one.
func (c *counters) ask(typ, flags uint16, name string) (packets uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return 0, fmt.Errorf("nfacct: %w", c.err)
	}
	request := c.conn.Request(typ, flags, unix.AF_UNSPEC)
	request.Text(acctName, name)
	if err := c.conn.Ask(request, func(m nfnetlink.Message) {
		for typ, v := range m.Attributes() {
			if typ == acctPackets {
				packets = nfnetlink.Uint64(v)
			}
		}
	}); err != nil {
		return 0, fmt.Errorf("nfacct %s: %w", name, err)
	}
	return packets, nil
}
