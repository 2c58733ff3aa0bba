package conntrack

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
)

// The flags of a filter are in the byte order of the machine, as the headers of attributes are; the rest is in that of
// the network. The test runs on machines of both orders, see testing/processors.
func TestTheBytesOfAFilterOnEachProcessor(t *testing.T) {
	var b nfnetlink.Builder
	udpFilter(Selection{Destination: netip.MustParseAddrPort("10.96.0.10:53"),
		ReplySource: netip.MustParseAddrPort("10.244.1.5:5353")})(&b)
	want := "" +
		"2400 0180" + "0c00 0180" + "0800 0200 0a60000a" + "1400 0280" + "0500 0100 11000000" + "0600 0300 00350000" +
		"2400 0280" + "0c00 0180" + "0800 0100 0af40105" + "1400 0280" + "0500 0100 11000000" + "0600 0200 14e90000" +
		"1400 1980" + "0800 0100 2a000000" + "0800 0200 19000000"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		want = "" +
			"0024 8001" + "000c 8001" + "0008 0002 0a60000a" + "0014 8002" + "0005 0001 11000000" + "0006 0003 00350000" +
			"0024 8002" + "000c 8001" + "0008 0001 0af40105" + "0014 8002" + "0005 0001 11000000" + "0006 0002 14e90000" +
			"0014 8019" + "0008 0001 0000002a" + "0008 0002 00000019"
	}
	assert.Equal(t, strings.ReplaceAll(want, " ", ""), hex.EncodeToString(b.Buf))
}
