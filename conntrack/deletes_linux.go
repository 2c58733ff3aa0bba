package conntrack

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// deleteBatch is the number of deletes in one system call. The kernel answers each failed delete with a message of
// about 1 KiB, and drops messages that exceed the socket's buffer (208 KiB).
const deleteBatch = 128

// deletes collects requests to delete flows, to be sent in one system call.
type deletes struct {
	conn    *nfnetlink.Conn
	family  model.Family
	batch   nfnetlink.Builder // its messages are numbered from 1
	deleted int               // flows so far
}

// add adds a flow, and sends the batch when it is full. It skips an entry without a tuple: such a request would flush
// the whole table.
func (d *deletes) add(e entry) error {
	if !e.deletable() {
		return nil
	}
	d.batch.Message(ctDelete, unix.NLM_F_REQUEST, nfnetlink.Proto(d.family), 0)
	d.batch.Bytes(ctaTupleOrig|unix.NLA_F_NESTED, e.tuple)
	d.batch.Bytes(ctaID, e.id)
	d.batch.End()
	if d.batch.Seq < deleteBatch {
		return nil
	}
	return d.flush()
}

// flush sends the collected requests and counts the deleted flows.
func (d *deletes) flush() error {
	if d.batch.Seq == 0 {
		return nil
	}
	defer d.batch.Reset()
	// The kernel acknowledges only the last message, and answers the others only if they fail.
	d.batch.Acknowledge()
	if err := d.conn.Send(d.batch.Buf); err != nil {
		return fmt.Errorf("deleting conntrack entries: %w", err)
	}
	failed, answered := 0, false
	var refused error
	err := d.conn.Answers(func(m nfnetlink.Message) error {
		answered = answered || m.Seq == d.batch.Seq
		errno, _ := m.Failure()
		if errno == 0 {
			return nil
		}
		failed++
		// A flow that is gone, or has been replaced, needs no delete.
		if errno != unix.ENOENT && refused == nil {
			refused = fmt.Errorf("deleting a conntrack entry: %w", errno)
		}
		return nil
	})
	if err == nil && !answered {
		err = errors.New("deleting conntrack entries: no reply from the kernel")
	}
	d.deleted += int(d.batch.Seq) - failed
	return errors.Join(refused, err)
}
