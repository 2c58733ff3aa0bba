package userspace

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

// New clients of a port that has as many as it remembers: to look at all of them for each of these would take a minute.
func TestAPortRemembersSoManyClientsAndNoMore(t *testing.T) {
	p := newPort()
	p.spec.AffinityTimeout = time.Hour
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080")}
	p.count(endpoints[0], 0, 1)
	client := func(i uint32) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+i)))
	}
	const clients = 2*maxContacts + 10
	for i := range uint32(clients) {
		p.choose(endpoints, 0, client(i))
	}
	require.Len(t, p.contacts, maxContacts)
	require.Contains(t, p.contacts, client(clients-1), "the last one")

	// One that is known takes nobody's place.
	p.choose(endpoints, 0, client(clients-1))
	require.Len(t, p.contacts, maxContacts)
}

func TestThatNothingCanBeAcceptedIsLoggedNowAndThen(t *testing.T) {
	lines := 0
	logger := funcr.New(func(string, string) { lines++ }, funcr.Options{})
	b := &Backend{ctx: klog.NewContext(t.Context(), logger)}
	now := time.Now()
	for range 3 {
		for i := range 1000 { // listeners
			at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(1+i))
			b.logAcceptError(errors.New("too many open files"), at, now)
		}
		now = now.Add(acceptLogPause)
	}
	require.Equal(t, 3, lines)
}
