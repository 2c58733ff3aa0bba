package dataplane

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Registers have numbers in the byte order of the machine, and so has the user data of nft; addresses and ports are in
// that of the network. The test runs on machines of both orders, see testing/processors.
func TestTheBytesOfKeysMasksAndUserDataOnEachProcessor(t *testing.T) {
	s := newSample(model.IPv4)
	for _, tc := range []struct {
		name                    string
		got                     []byte
		littleEndian, bigEndian string // "": the same
	}{
		{"a key with a number, and its value", []byte(s.slot(2, s.pod, 80).Key + s.slot(2, s.pod, 80).Value),
			"0a600001 06000000 00500000 02000000 0af40105 00500000",
			"0a600001 06000000 00500000 00000002 0af40105 00500000"},
		{"user data of a key with a number", setUserdata(s.sticky, model.IPv4),
			"0004 00000000" + "033a" + "0004 0d000000" + "0132" + // concatenation of
				"0014" + "0004 07000000" + "010c" + "0004 0c000000" + "0104 0b000000" + // payload: ip, saddr
				"011a" + "0004 17000000" + "0112" + "0004 01000000" + "0104 00000100" + "0204 00000000", // numgen: random
			"0004 00000000" + "033a" + "0004 0000000d" + "0132" +
				"0014" + "0004 00000007" + "010c" + "0004 0000000c" + "0104 0000000b" +
				"011a" + "0004 00000017" + "0112" + "0004 00000001" + "0104 00010000" + "0204 00000000"},
		{"a mark that is set: mask, xor", rawBytes(t, SetMark{1 << 14}), "ffbfffff 00400000", "ffffbfff 00004000"},
		{"a mark that is inverted: mask, xor", rawBytes(t, FlipMark{1 << 14}), "ffffffff 00400000", "ffffffff 00004000"},
		{"a mark: mask, xor, value", rawBytes(t, HasMark{1 << 14}), "00400000 00000000 00400000",
			"00004000 00000000 00004000"},
		{"a state of conntrack: mask, xor, value", rawBytes(t, IsNew{}), "08000000 00000000 00000000",
			"00000008 00000000 00000000"},
		{"a status of conntrack: mask, xor, value", rawBytes(t, IsDNATed{}), "20000000 00000000 00000000",
			"00000020 00000000 00000000"},
		{"a type of address", rawBytes(t, IsLocal{DestinationAddr}), "02000000", "00000002"},
		{"a random number", rawBytes(t, OneIn{3}), "00000000", ""},
		{"a fraction", rawBytes(t, Fraction{300, 301}), "0000012c", ""},
		{"a protocol", rawBytes(t, IsProtocol{model.UDP}), "11", ""},
		{"an address and port", rawBytes(t, DNAT{netip.AddrPortFrom(s.pod, 80)}), "0af40105 0050", ""},
		{"a prefix: mask, xor, value", rawBytes(t, InPrefix{Field: SourceAddr, Prefix: netip.PrefixFrom(s.pod, 21)}),
			"fffff800 00000000 0af40000", ""},
	} {
		want := tc.littleEndian
		if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 && tc.bigEndian != "" {
			want = tc.bigEndian
		}
		assert.Equal(t, strings.ReplaceAll(want, " ", ""), hex.EncodeToString(tc.got), tc.name)
	}
}

// rawBytes returns what a statement compares registers with, changes them by, or loads into them.
func rawBytes(t *testing.T, s Statement) (b []byte) {
	list, err := encode(s, model.IPv4)
	require.NoError(t, err)
	for _, e := range list {
		switch e := e.(type) {
		case *expr.Bitwise:
			b = append(append(b, e.Mask...), e.Xor...)
		case *expr.Cmp:
			b = append(b, e.Data...)
		case *expr.Immediate:
			b = append(b, e.Data...)
		}
	}
	return b
}
