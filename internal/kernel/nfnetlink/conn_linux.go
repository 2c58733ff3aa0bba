package nfnetlink

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
)

// Conn is a netlink socket. The kernel processes messages of nf_tables and conntrack in the system call that sends
// them, and continues a dump in those that read it: the answers are available at once, so nothing blocks. It must not
// be used concurrently.
type Conn struct {
	file *os.File
	raw  syscall.RawConn
	port uint32
	seq  uint32
	recv []byte
}

// Config configures a [Conn]. The zero value is usable.
type Config struct {
	// NetNS is a file descriptor of the network namespace. 0 means the calling thread's.
	NetNS int
	// SendBuffer and ReceiveBuffer are the sizes of the socket's buffers in bytes, above the system's limits if the
	// process is privileged. A batch and its answers have to fit. 0 means the system's default.
	SendBuffer, ReceiveBuffer int
	// Waits: Wait will be called. Otherwise the Go runtime does not poll the socket, which saves a tenth of the time of
	// many small requests.
	Waits bool
}

// recvSize exceeds what the kernel returns in one read: at most 32 KiB of a dump.
const recvSize = 64 << 10

// Dial opens a socket.
func Dial(config Config) (*Conn, error) {
	file, err := open(config)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	c := &Conn{file: file, raw: raw, recv: make([]byte, recvSize)}
	err = c.control(func(fd int) error {
		setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, config.SendBuffer)
		setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, config.ReceiveBuffer)
		// Older kernels support neither: they explain no error, and repeat the whole request in it.
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
		address, err := unix.Getsockname(fd)
		if nl, ok := address.(*unix.SockaddrNetlink); ok {
			c.port = nl.Pid
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return c, nil
}

// open opens the socket in its namespace. The library always registers it with the runtime's poller, so only a
// duplicate of its file descriptor is kept. Its own NetNS is not used: with it the library panics if the kernel has no
// socket for it (seen with v1.8.0).
func open(config Config) (file *os.File, err error) {
	if config.NetNS == 0 {
		return openHere(config)
	}
	err = osthread.In(config.NetNS, func() error {
		file, err = openHere(config)
		return err
	})
	return file, err
}

// openHere opens the socket in the namespace of the thread.
func openHere(config Config) (*os.File, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	own := -1
	if e := raw.Control(func(fd uintptr) { own, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		err = e
	}
	if err = errors.Join(err, conn.Close()); err == nil {
		err = unix.SetNonblock(own, config.Waits) // os.NewFile uses the poller if the descriptor is non-blocking
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), "netlink"), nil
}

func setBuffer(fd, force, option, size int) {
	if size > 0 && unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size) // as far as the limits permit
	}
}

// Close closes the socket. It ends a Wait.
func (c *Conn) Close() error { return c.file.Close() }

// Port returns the socket's netlink address, by which the kernel identifies the sender of a change.
func (c *Conn) Port() uint32 { return c.port }

// Join subscribes to a netfilter multicast group.
func (c *Conn) Join(group int) error { return c.membership(unix.NETLINK_ADD_MEMBERSHIP, group) }

// Leave ends the subscription to a group.
func (c *Conn) Leave(group int) error { return c.membership(unix.NETLINK_DROP_MEMBERSHIP, group) }

func (c *Conn) membership(option, group int) error {
	return c.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, group) })
}

func (c *Conn) control(f func(fd int) error) error {
	var err error
	if e := c.raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

// Request starts a request with a new sequence number.
func (c *Conn) Request(typ, flags uint16, family byte) *Builder {
	b := &Builder{Seq: c.seq, Buf: make([]byte, 0, 256)}
	b.Message(typ, unix.NLM_F_REQUEST|flags, family, 0)
	c.seq = b.Seq
	return b
}

// Send discards unread answers and sends one or more messages in one system call.
func (c *Conn) Send(b []byte) error {
	c.drain()
	return c.control(func(fd int) error {
		for {
			err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
			if err != unix.EINTR {
				return err
			}
		}
	})
}

// receive returns the available data, or EAGAIN. The data are valid until the next call.
func (c *Conn) receive() ([]byte, error) {
	var n int
	err := c.control(func(fd int) (err error) {
		n, err = c.read(fd)
		return err
	})
	return c.recv[:n], err
}

func (c *Conn) read(fd int) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, c.recv, unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// Wait waits for notifications, after Join. The data are valid until the next call. ENOBUFS means that some were lost;
// after Close it returns os.ErrClosed.
func (c *Conn) Wait() ([]byte, error) {
	var n int
	var err error
	if e := c.raw.Read(func(fd uintptr) bool {
		n, err = c.read(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	}); e != nil {
		return nil, fmt.Errorf("%w: %w", os.ErrClosed, e)
	}
	return c.recv[:n], err
}

// drain discards available data. The kernel rejects a new dump until the previous one has been read to its end.
func (c *Conn) drain() {
	for {
		if _, err := c.receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

// Answers calls f with every answer to the last Send, until f returns an error.
func (c *Conn) Answers(f func(Message) error) error {
	for {
		b, err := c.receive()
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := Messages(b, f); err != nil {
			return err
		}
	}
}

// Ask sends a request, whose answer is at once, and calls f with each message of it. If the kernel rejects the request,
// it returns an [*Error]; an acknowledgement is an answer, too, but f is not called for it.
func (c *Conn) Ask(request *Builder, f func(Message)) error {
	request.End()
	if err := c.Send(request.Buf); err != nil {
		return err
	}
	answered := false
	err := c.Answers(func(m Message) error {
		answered = true
		if m.Type == unix.NLMSG_ERROR {
			return m.Err()
		}
		f(m)
		return nil
	})
	if err == nil && !answered {
		err = errors.New("no reply from the kernel")
	}
	return err
}

// Error is the kernel's answer to a rejected request.
type Error struct {
	Errno syscall.Errno
	Hint  string // its explanation, "" if there is none
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Errno.Error()
	}
	return fmt.Sprintf("%v (%s)", e.Errno, e.Hint)
}

// Unwrap returns the error number.
func (e *Error) Unwrap() error { return e.Errno }

// ErrInterrupted is returned by [Conn.Dump] if the list changed while it was read.
var ErrInterrupted = errors.New("the list changed while it was read")

// Dump sends a request for a list and calls f with each message of the answer, until f returns an error. If the kernel
// rejects the request, it returns an [*Error] without calling f.
func (c *Conn) Dump(request *Builder, f func(Message) error) error {
	if err := c.Send(request.Buf); err != nil {
		return err
	}
	interrupted := false
	for {
		b, err := c.receive()
		if err != nil {
			return err
		}
		err = Messages(b, func(m Message) error {
			if m.Seq != request.Seq {
				return nil
			}
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			if m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR {
				return cmp.Or(m.Err(), errDone)
			}
			return f(m)
		})
		switch {
		case errors.Is(err, errDone) && interrupted:
			return ErrInterrupted
		case errors.Is(err, errDone):
			return nil
		case err != nil:
			return err
		}
	}
}

// errDone ends a dump.
var errDone = errors.New("done")

// Generation returns the generation of nf_tables' ruleset: a number that every change increases.
func (c *Conn) Generation() (uint32, error) {
	request := c.Request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC)
	var generation uint32
	err := c.Ask(request, func(m Message) { generation = GenerationOf(m) })
	if err == nil && generation == 0 {
		err = errors.New("no generation ID in the reply")
	}
	return generation, err
}

// GenerationOf returns the ruleset generation in a message, or 0.
func GenerationOf(m Message) uint32 {
	const genID = 1 // NFTA_GEN_ID
	for typ, v := range m.Attributes() {
		if typ == genID {
			return Uint32(v)
		}
	}
	return 0
}
