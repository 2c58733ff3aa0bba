package nfnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Builder builds consecutive messages in one buffer. Open returns the offset of a nested attribute, which Close needs.
// The zero value is ready to use.
type Builder struct {
	Buf   []byte
	Seq   uint32 // sequence number of the last message
	start int    // offset of that message
}

const (
	headerLen = unix.SizeofNlMsghdr
	// nfgenLen is the length of struct nfgenmsg, at the start of every message's data.
	nfgenLen = 4
	// attrLen is the length of the header of an attribute.
	attrLen = 4

	// HeaderLen is the number of bytes of a message before its first attribute.
	HeaderLen = headerLen + nfgenLen
	// MaxAttrLen is a safe maximum for an attribute, whose length field has 16 bits.
	MaxAttrLen = 60 << 10
)

// Proto returns netfilter's number of an IP family.
func Proto(f model.Family) byte {
	if f == model.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Message starts a message. typ is a subsystem (shifted by 8) and one of its messages, family a netfilter protocol.
// resource is 0, except for the messages around a batch.
func (b *Builder) Message(typ, flags uint16, family byte, resource uint16) {
	b.Seq++
	b.start = len(b.Buf)
	b.Buf = append(b.Buf, 0, 0, 0, 0)
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, typ)
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, flags)
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, b.Seq)
	b.Buf = append(b.Buf, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
	b.Buf = binary.BigEndian.AppendUint16(b.Buf, resource)
}

// End completes the message.
func (b *Builder) End() {
	binary.NativeEndian.PutUint32(b.Buf[b.start:], uint32(len(b.Buf)-b.start))
}

// Acknowledge requests an answer to the last message.
func (b *Builder) Acknowledge() {
	flags := b.Buf[b.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
}

// Reset empties the builder and keeps its buffer.
func (b *Builder) Reset() { b.Buf, b.Seq, b.start = b.Buf[:0], 0, 0 }

// Open starts a nested attribute, which ends with Close and the returned offset.
func (b *Builder) Open(typ uint16) (at int) {
	at = len(b.Buf)
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, 0)
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, typ|unix.NLA_F_NESTED)
	return at
}

// Close ends the attribute that Open started.
func (b *Builder) Close(at int) {
	binary.NativeEndian.PutUint16(b.Buf[at:], uint16(len(b.Buf)-at))
}

// Attr appends the header of an attribute of n bytes. The caller appends them to Buf and calls Pad.
func (b *Builder) Attr(typ uint16, n int) {
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, uint16(attrLen+n))
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, typ)
}

// Pad pads to the alignment of the next attribute.
func (b *Builder) Pad() {
	for len(b.Buf)&3 != 0 {
		b.Buf = append(b.Buf, 0)
	}
}

// Bytes appends an attribute.
func (b *Builder) Bytes(typ uint16, v []byte) {
	b.Attr(typ, len(v))
	b.Buf = append(b.Buf, v...)
	b.Pad()
}

// Raw appends an attribute whose bytes are a string.
func (b *Builder) Raw(typ uint16, v string) {
	b.Attr(typ, len(v))
	b.Buf = append(b.Buf, v...)
	b.Pad()
}

// Text appends a string with a terminating zero.
func (b *Builder) Text(typ uint16, s string) {
	b.Attr(typ, len(s)+1)
	b.Buf = append(append(b.Buf, s...), 0)
	b.Pad()
}

// Uint16 appends a number in network byte order.
func (b *Builder) Uint16(typ uint16, v uint16) {
	b.Attr(typ, 2)
	b.Buf = binary.BigEndian.AppendUint16(b.Buf, v)
	b.Pad()
}

// Uint64 appends a number in network byte order.
func (b *Builder) Uint64(typ uint16, v uint64) {
	b.Attr(typ, 8)
	b.Buf = binary.BigEndian.AppendUint64(b.Buf, v)
}

// Uint32 appends a number in network byte order.
func (b *Builder) Uint32(typ uint16, v uint32) {
	b.Attr(typ, 4)
	b.Buf = binary.BigEndian.AppendUint32(b.Buf, v)
}
