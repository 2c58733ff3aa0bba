package dataplane

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// wire builds netlink messages one after the other in one buffer. Attributes are nested by remembering where they begin.
type wire struct {
	buf   []byte
	seq   uint32
	start int // of the message that is being built
}

const (
	headerLen  = unix.SizeofNlMsghdr + 4 // netlink's header and nfnetlink's
	maxAttrLen = 60 << 10                // attributes have 16 bits for their length; stay clear of the end
)

func nfproto(f model.Family) byte {
	if f == model.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// message begins a message. resource is only used by the messages around a batch.
func (w *wire) message(typ, flags uint16, family byte, resource uint16) {
	w.seq++
	w.start = len(w.buf)
	w.buf = append(w.buf, 0, 0, 0, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, flags)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, w.seq)
	w.buf = append(w.buf, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
	w.buf = binary.BigEndian.AppendUint16(w.buf, resource)
}

// nft begins a message of nf_tables.
func (w *wire) nft(typ, flags uint16, f model.Family) {
	w.message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_REQUEST|flags, nfproto(f), 0)
}

// end completes the message.
func (w *wire) end() {
	binary.NativeEndian.PutUint32(w.buf[w.start:], uint32(len(w.buf)-w.start))
}

// acknowledge asks for an answer to the message that was built last.
func (w *wire) acknowledge() { w.buf[w.start+6] |= unix.NLM_F_ACK }

func (w *wire) open(typ uint16) (at int) {
	at = len(w.buf)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ|unix.NLA_F_NESTED)
	return at
}

func (w *wire) close(at int) {
	binary.NativeEndian.PutUint16(w.buf[at:], uint16(len(w.buf)-at))
}

func (w *wire) attr(typ uint16, n int) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(4+n))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
}

func (w *wire) pad() {
	for len(w.buf)&3 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *wire) bytes(typ uint16, b []byte) {
	w.attr(typ, len(b))
	w.buf = append(w.buf, b...)
	w.pad()
}

// raw appends bytes given as a string.
func (w *wire) raw(typ uint16, s string) {
	w.attr(typ, len(s))
	w.buf = append(w.buf, s...)
	w.pad()
}

// text appends a string that ends with a zero.
func (w *wire) text(typ uint16, s string) {
	w.attr(typ, len(s)+1)
	w.buf = append(append(w.buf, s...), 0)
	w.pad()
}

func (w *wire) u32(typ uint16, v uint32) {
	w.attr(typ, 4)
	w.buf = binary.BigEndian.AppendUint32(w.buf, v)
}

// attributes calls back for each attribute in b, without flags in its type.
func attributes(b []byte, f func(typ uint16, v []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// cstring returns a string that may end with a zero.
func cstring(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
