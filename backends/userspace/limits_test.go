package userspace

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

func TestWhatAllListenersFindOutIsLoggedNowAndThen(t *testing.T) {
	var s seldom
	lines := 0
	now := time.Now()
	for range 3 {
		for range 1000 { // listeners
			if s.due(now) {
				lines++
			}
		}
		now = now.Add(logPause)
	}
	require.Equal(t, 3, lines)
}
