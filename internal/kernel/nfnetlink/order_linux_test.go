package nfnetlink

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Headers are in the byte order of the machine, numbers in attributes in that of the network. The test runs on machines
// of both orders, see testing/processors.
func TestTheBytesOfAMessageOnEachProcessor(t *testing.T) {
	var b Builder
	b.Message(0x0a01, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, Proto(model.IPv6), 0x0102)
	b.Text(1, "kpl")
	list := b.Open(2)
	b.Uint16(3, 0x1234)
	b.Uint32(4, 0x12345678)
	b.Uint64(5, 0x123456789abcdef0)
	b.Close(list)
	b.End()
	b.Acknowledge()
	want := "" + // length, type, flags, sequence number, port; family, version, resource; attributes
		"3c000000 010a 0504 01000000 00000000 0a 00 0102" + "0800 0100 6b706c00" +
		"2000 0280" + "0600 0300 12340000" + "0800 0400 12345678" + "0c00 0500 123456789abcdef0"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		want = "0000003c 0a01 0405 00000001 00000000 0a 00 0102" + "0008 0001 6b706c00" +
			"0020 8002" + "0006 0003 12340000" + "0008 0004 12345678" + "000c 0005 123456789abcdef0"
	}
	assert.Equal(t, strings.ReplaceAll(want, " ", ""), hex.EncodeToString(b.Buf))

	require.NoError(t, Messages(b.Buf, func(m Message) error {
		assert.Equal(t, []uint16{0x0a01, unix.NLM_F_REQUEST | unix.NLM_F_CREATE | unix.NLM_F_ACK},
			[]uint16{m.Type, m.Flags})
		return nil
	}))
}
