package nfnetlink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"syscall"

	"golang.org/x/sys/unix"
)

// Message is a message from the kernel. Its data are part of the buffer that it was read into.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	Port        uint32 // of the socket that caused the message
	Data        []byte // after netlink's header
}

// Messages calls f with each message in b until f returns an error.
func Messages(b []byte, f func(Message) error) error {
	for len(b) > 0 {
		n := len(b)
		if n >= headerLen {
			n = int(binary.NativeEndian.Uint32(b))
		}
		if n < headerLen || n > len(b) {
			return fmt.Errorf("malformed netlink message of %d bytes, %d received", n, len(b))
		}
		if err := f(Message{
			Type:  binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:]),
			Seq:   binary.NativeEndian.Uint32(b[8:]),
			Port:  binary.NativeEndian.Uint32(b[12:]),
			Data:  b[headerLen:n],
		}); err != nil {
			return err
		}
		b = b[min(align(n), len(b)):]
	}
	return nil
}

// align rounds up to the alignment of messages and attributes.
func align(n int) int { return (n + 3) &^ 3 }

// Attributes returns the attributes of a message.
func (m Message) Attributes() iter.Seq2[uint16, []byte] {
	return Attributes(m.Data[min(nfgenLen, len(m.Data)):])
}

// Err returns the [*Error] in a message of type NLMSG_ERROR or NLMSG_DONE, or nil for an acknowledgement.
func (m Message) Err() error {
	if errno, hint := m.Failure(); errno != 0 {
		return &Error{errno, hint}
	}
	return nil
}

// Failure returns the error number in a message of type NLMSG_ERROR or NLMSG_DONE, 0 for an acknowledgement, and the
// kernel's explanation, if any.
func (m Message) Failure() (syscall.Errno, string) {
	if m.Type == unix.NLMSG_DONE {
		return errno(m.Data), ""
	}
	const minimum = 4 + headerLen // the error, and the header of the rejected message
	if len(m.Data) < minimum {
		return unix.EBADMSG, ""
	}
	hint := ""
	if m.Flags&unix.NLM_F_ACK_TLVS != 0 {
		at := minimum
		if m.Flags&unix.NLM_F_CAPPED == 0 {
			at = 4 + int(binary.NativeEndian.Uint32(m.Data[4:]))
		}
		if at = align(at); at >= minimum && at < len(m.Data) {
			for typ, v := range Attributes(m.Data[at:]) {
				if typ == unix.NLMSGERR_ATTR_MSG {
					hint = CString(v)
				}
			}
		}
	}
	return errno(m.Data), hint
}

func errno(b []byte) syscall.Errno {
	if len(b) < 4 {
		return 0
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(b)))
}

// Attributes returns the types (without flags) and values of the attributes in b, up to the first malformed one.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrLen {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrLen || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[attrLen:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// CString returns a string up to its optional terminating zero.
func CString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// Uint16 parses a number in network byte order; it is 0 if b is too short.
func Uint16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// Uint64 parses a number in network byte order; it is 0 if b is too short.
func Uint64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Uint32 parses a number in network byte order; it is 0 if b is too short.
func Uint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
