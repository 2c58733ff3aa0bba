package userspace

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var endpoints = []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080"), netip.MustParseAddrPort("10.244.1.6:8080")}

// sticky returns a port with these endpoints and session affinity for an hour.
func sticky(remembered *atomic.Int64) *port {
	p := newPort(remembered)
	p.spec.AffinityTimeout = time.Hour
	p.sets[0] = endpoints
	for _, e := range endpoints {
		p.count(e, 0, 1)
	}
	return p
}

// choose chooses an endpoint for a client as a connection does.
func choose(p *port, client int, tried ...netip.AddrPort) netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.choose(endpoints, 0, clientOf(client), tried)
}

func clientOf(i int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(10<<24+i))))
}

// New clients of a port that has as many as it remembers: to look at all of them for each of these would take a minute.
func TestAPortRemembersSoManyClientsAndNoMore(t *testing.T) {
	var all atomic.Int64
	p := sticky(&all)
	const clients = 2*maxContacts + 10
	for i := range clients {
		choose(p, i)
	}
	require.Len(t, p.contacts.byClient, maxContacts)
	require.Contains(t, p.contacts.byClient, clientOf(clients-1), "the last one")

	// A client that is known already does not replace another one.
	choose(p, clients-1)
	require.Len(t, p.contacts.byClient, maxContacts)
	require.Equal(t, int64(maxContacts), all.Load())
}

func TestAllPortsTogetherRememberSoManyClients(t *testing.T) {
	var all atomic.Int64
	all.Store(maxAllContacts)
	p := sticky(&all)
	for i := range 10 * minContacts {
		choose(p, i)
	}
	assert.Len(t, p.contacts.byClient, minContacts)
	p.remove()
	assert.Equal(t, int64(maxAllContacts), all.Load())
}

func TestClientsAreForgottenWhenTheirAffinityEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all atomic.Int64
		p := sticky(&all)
		remembered := func() int {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.contacts.byClient)
		}
		for i := range 1000 {
			choose(p, i)
		}
		time.Sleep(59 * time.Minute)
		home := choose(p, 0)
		time.Sleep(2 * time.Minute)
		assert.Equal(t, 1, remembered(), "the one that came back")
		for range 20 {
			assert.Equal(t, home, choose(p, 0))
		}
		time.Sleep(3 * time.Hour)
		assert.Zero(t, remembered())
		assert.Zero(t, all.Load())
	})
}

// An endpoint to which a connection failed is left alone for a while, also by clients with affinity to it, unless there
// is no other.
func TestADeadEndpointIsPassedOverForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := sticky(new(atomic.Int64))
		home := choose(p, 1)
		p.markDead(home, clientOf(2))
		for i := range 50 {
			assert.NotEqual(t, home, choose(p, 1+i))
		}
		for _, e := range endpoints {
			p.markDead(e, clientOf(3))
		}
		assert.Contains(t, endpoints, choose(p, 4), "all are dead")
		assert.Equal(t, endpoints[1], choose(p, 4, endpoints[0]))
		assert.False(t, choose(p, 4, endpoints...).IsValid(), "all were tried")

		p.connected(endpoints[0])
		assert.Equal(t, endpoints[0], choose(p, 5))
		time.Sleep(deadTime)
		seen := map[netip.AddrPort]bool{}
		for i := range 64 { // fails once in 2^63 runs
			seen[choose(p, 100+i)] = true
		}
		assert.Len(t, seen, 2)
		p.mu.Lock()
		p.count(endpoints[1], 0, -1)
		assert.NotContains(t, p.dead, endpoints[1])
		p.mu.Unlock()
		time.Sleep(3 * time.Hour) // the sweep ends
	})
}

func TestAClientForgetsAnEndpointThatFailed(t *testing.T) {
	p := sticky(new(atomic.Int64))
	home := choose(p, 1)
	p.markDead(home, clientOf(1))
	_, known := p.contacts.byClient[clientOf(1)]
	assert.False(t, known)
}
