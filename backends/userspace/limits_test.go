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
		p.choose(endpoints, 0, client(i), nil)
	}
	require.Len(t, p.contacts, maxContacts)
	require.Contains(t, p.contacts, client(clients-1), "the last one")

	// One that is known takes nobody's place.
	p.choose(endpoints, 0, client(clients-1), nil)
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

// Limits fit into the file descriptors of a process that does more than serve node ports.
func TestLimitsFitIntoTheFilesOfTheProcess(t *testing.T) {
	o := tuning{}.within(24000)
	require.Equal(t, []int{1000, 4096, 6000}, []int{o.MaxConnections, o.MaxFlows, o.MaxListeners})
	o = tuning{MaxConnections: 7}.within(1 << 30)
	require.Equal(t, []int{7, 4096, 32768}, []int{o.MaxConnections, o.MaxFlows, o.MaxListeners})
	o = tuning{}.within(0)
	require.Equal(t, []int{1, 1, 1}, []int{o.MaxConnections, o.MaxFlows, o.MaxListeners})
}
