package nfnetlink

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// attribute is one of those that a message was built from.
type attribute struct {
	typ   uint16
	value string
}

func attributesOf(b []byte) (list []attribute) {
	for typ, v := range Attributes(b) {
		list = append(list, attribute{typ, string(v)})
	}
	return list
}

func TestWhatIsBuiltIsReadBack(t *testing.T) {
	var b Builder
	b.Message(0x0a01, unix.NLM_F_REQUEST, Proto(model.IPv6), 7)
	b.Text(1, "odd")
	b.Bytes(2, []byte{1, 2, 3, 4, 5})
	list := b.Open(3)
	b.Uint16(4, 0x1234)
	b.Raw(5, "raw")
	b.Uint32(6, 0x12345678)
	b.Close(list)
	b.End()
	b.Message(0x0a02, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, Proto(model.IPv4), 0)
	b.End()
	b.Acknowledge()

	var got []Message
	require.NoError(t, Messages(b.Buf, func(m Message) error { got = append(got, m); return nil }))
	require.Len(t, got, 2)
	assert.Equal(t, Message{Type: 0x0a02, Flags: unix.NLM_F_REQUEST | unix.NLM_F_CREATE | unix.NLM_F_ACK, Seq: 2,
		Data: []byte{unix.NFPROTO_IPV4, 0, 0, 0}}, got[1])
	first := got[0]
	assert.Equal(t, []uint16{0x0a01, unix.NLM_F_REQUEST, 1}, []uint16{first.Type, first.Flags, uint16(first.Seq)})
	assert.Equal(t, []byte{unix.NFPROTO_IPV6, unix.NFNETLINK_V0, 0, 7}, first.Data[:4])

	attributes := attributesOf(first.Data[4:])
	require.Len(t, attributes, 3)
	assert.Equal(t, []attribute{{1, "odd\x00"}, {2, "\x01\x02\x03\x04\x05"}}, attributes[:2])
	assert.Equal(t, "odd", CString([]byte(attributes[0].value)))
	assert.Equal(t, []attribute{{4, "\x12\x34"}, {5, "raw"}, {6, "\x12\x34\x56\x78"}},
		attributesOf([]byte(attributes[2].value)))
	for typ := range first.Attributes() {
		assert.EqualValues(t, 1, typ, "a loop may end early")
		break
	}

	b.Reset()
	assert.Empty(t, b.Buf)
	b.Message(0x0a03, 0, 0, 0)
	assert.EqualValues(t, 1, b.Seq)
}

func TestNumbersThatAreCutShortAreZero(t *testing.T) {
	assert.EqualValues(t, 0x0102, Uint16([]byte{1, 2}))
	assert.EqualValues(t, 0x01020304, Uint32([]byte{1, 2, 3, 4}))
	assert.Zero(t, Uint16([]byte{1}))
	assert.Zero(t, Uint32([]byte{1, 2, 3}))
	assert.Equal(t, "open end", CString([]byte("open end")))
}

func TestMalformedInput(t *testing.T) {
	var b Builder
	b.Message(0x0a01, 0, 0, 0)
	b.Uint32(1, 1)
	b.End()
	whole := b.Buf
	tooLong := append([]byte(nil), whole...)
	binary.NativeEndian.PutUint32(tooLong, uint32(len(whole)+1))
	tooShort := append([]byte(nil), whole...)
	binary.NativeEndian.PutUint32(tooShort, headerLen-1)
	for name, input := range map[string][]byte{
		"cut within the header": whole[:headerLen-1], "cut behind it": whole[:len(whole)-1],
		"longer than it is":     tooLong,
		"shorter than a header": tooShort, "rubbish behind a message": append(append([]byte(nil), whole...), 1, 2, 3),
	} {
		assert.ErrorContains(t, Messages(input, func(Message) error { return nil }), "malformed netlink message", name)
	}
	attribute1 := func(length uint16, value string) []byte {
		header := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, length), 1)
		return append(header, value...)
	}
	assert.Empty(t, attributesOf(attribute1(3, "")), "shorter than its header")
	assert.Empty(t, attributesOf(attribute1(9, "four")), "longer than what is there")
	assert.Equal(t, []attribute{{1, "x"}}, attributesOf(attribute1(5, "x")), "without padding at the end")
	stop := errors.New("stop")
	assert.Equal(t, stop, Messages(whole, func(Message) error { return stop }))
}

func TestFailureAndItsExplanation(t *testing.T) {
	hint := func(flags uint16, before int) Message {
		var b Builder
		b.Text(unix.NLMSGERR_ATTR_MSG, "no such thing")
		data := make([]byte, 4+before)
		errno := -int32(unix.ENOENT)
		binary.NativeEndian.PutUint32(data, uint32(errno))
		// the header of the message that failed begins with its length
		binary.NativeEndian.PutUint32(data[4:], uint32(before))
		return Message{Type: unix.NLMSG_ERROR, Flags: flags, Data: append(data, b.Buf...)}
	}
	for _, test := range []struct {
		name  string
		m     Message
		errno error
		hint  string
	}{
		{"an acknowledgement", Message{Type: unix.NLMSG_ERROR, Data: make([]byte, 20)}, unix.Errno(0), ""},
		{"without the message that failed", hint(unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED, headerLen), unix.ENOENT,
			"no such thing"},
		{"behind the message that failed", hint(unix.NLM_F_ACK_TLVS, headerLen+12), unix.ENOENT, "no such thing"},
		{"no explanation announced", hint(0, headerLen), unix.ENOENT, ""},
		{"cut short", Message{Type: unix.NLMSG_ERROR, Data: []byte{1, 2, 3, 4}}, unix.EBADMSG, ""},
		{"the end of a list", Message{Type: unix.NLMSG_DONE, Data: []byte{0, 0, 0, 0}}, unix.Errno(0), ""},
		{"the end of a list from an old kernel", Message{Type: unix.NLMSG_DONE}, unix.Errno(0), ""},
	} {
		errno, hint := test.m.Failure()
		assert.Equal(t, test.errno, errno, test.name)
		assert.Equal(t, test.hint, hint, test.name)
	}
}

// Parsing any input ends and does not panic.
func FuzzParse(f *testing.F) {
	var b Builder
	b.Message(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, 2, 0)
	b.Bytes(1, make([]byte, 24))
	b.Text(1, "text")
	b.End()
	f.Add(b.Buf)
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = Messages(data, func(m Message) error {
			_, _ = m.Failure()
			GenerationOf(m)
			for _, v := range m.Attributes() {
				attributesOf(v)
			}
			return nil
		})
	})
}
