package userspace

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func portOf(namespace, service string) model.PortName {
	return model.PortName{Service: model.ServiceName{Namespace: namespace, Name: service}, Port: "http",
		Protocol: model.TCP}
}

// takeAll takes as many listeners for a port as it may have.
func takeAll(q *listenerQuota, port model.PortName) (all []*share) {
	for sh := q.take(port); sh != nil; sh = q.take(port) {
		all = append(all, sh)
	}
	return all
}

func TestAPortLeavesHalfOfTheListenersToOthers(t *testing.T) {
	q := newListenerQuota(16)
	all := takeAll(q, portOf("a", "web"))
	assert.Len(t, all, 8)
	second := takeAll(q, portOf("b", "web"))
	assert.Len(t, second, 4)
	for _, sh := range append(all, second...) {
		q.release(sh)
	}
	assert.Zero(t, q.taken)
	assert.Empty(t, q.shares.ports)
	assert.Empty(t, q.shares.namespaces)
}

func TestANamespaceOfManyServicesLeavesAQuarterToOthers(t *testing.T) {
	q := newListenerQuota(1000)
	n := 0
	for i := range 1000 {
		n += len(takeAll(q, portOf("a", fmt.Sprint("web-", i))))
	}
	assert.Equal(t, 750, n)
	assert.Len(t, takeAll(q, portOf("b", "web")), 125)
}

func TestAListenerCountsAgainstThePortThatTakesOverItsFrontend(t *testing.T) {
	q := newListenerQuota(16)
	sh := q.move(q.take(portOf("a", "web")), portOf("b", "web"))
	assert.Equal(t, portOf("b", "web"), sh.port)
	assert.Equal(t, 1, q.taken)
	assert.Len(t, q.shares.ports, 1)
	assert.Len(t, q.shares.namespaces, 1)
	assert.Equal(t, 1, sh.namespace.taken)
}

// poolClients are clients that take slots of a pool, and how many of each have been ended.
type poolClients struct {
	*pool
	ended map[string]int
}

// take takes a slot for the i-th client of a service, and reports whether there was one.
func (c poolClients) take(namespace, service string, i int) bool {
	client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	s, _ := c.pool.take(portOf(namespace, service), client, func() { c.ended[namespace+"/"+service]++ })
	return s != nil
}

func newPoolClients(limit int) poolClients {
	return poolClients{newPool(limit, time.Minute), map[string]int{}}
}

// A few namespaces have many services and clients. A namespace that has less loses no connection, and gets as many as
// the others have.
func TestAFloodTakesNothingFromWhoHasLess(t *testing.T) {
	c := newPoolClients(400)
	for i := range 10 {
		require.True(t, c.take("victim", "web", i))
	}
	for i := range 4000 {
		c.take(fmt.Sprint("flood-", i%4), fmt.Sprint("web-", i%16), i)
	}
	assert.Zero(t, c.ended["victim/web"])
	for i := range 60 {
		require.True(t, c.take("victim", "web", 10+i), i)
	}
	assert.Zero(t, c.ended["victim/web"])
	assert.Len(t, c.slots, 400)
	assert.Equal(t, 70, c.shares.namespaces["victim"].taken)
}

// Within a namespace its services are treated alike, and within a service its clients.
func TestAServiceAndAClientTakeNothingFromWhoHasLess(t *testing.T) {
	c := newPoolClients(100)
	require.True(t, c.take("a", "small", 1))
	require.True(t, c.take("a", "web", 2))
	for range 200 {
		c.take("a", "web", 1) // one client
	}
	for i := range 20 {
		require.True(t, c.take("a", "small", i), i)
	}
	assert.Zero(t, c.ended["a/small"])
	for i := range 20 {
		require.True(t, c.take("a", "web", 10+i), i)
	}
	web := c.shares.ports[portOf("a", "web")]
	assert.Equal(t, 1, web.clients[netip.AddrFrom4([4]byte{10, 0, 0, 2})], "the client that has one keeps it")
}

// Among equals only an idle slot changes hands: otherwise a client with many addresses could end all connections of
// others.
func TestAmongEqualsTheLongestIdleGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPoolClients(3)
		for i := range 3 {
			require.True(t, c.take("a", "web", i))
			time.Sleep(time.Second)
		}
		require.False(t, c.take("a", "web", 3))
		require.False(t, c.take("a", "web", 0))
		for s := range c.slots {
			if s.client == netip.AddrFrom4([4]byte{10, 0, 0, 0}) {
				s.touch()
			}
		}
		time.Sleep(time.Minute - 2*time.Second)
		require.True(t, c.take("a", "web", 3))
		assert.Equal(t, 1, c.ended["a/web"])
		for s := range c.slots {
			assert.NotEqual(t, netip.AddrFrom4([4]byte{10, 0, 0, 1}), s.client, "it was idle for longest")
		}
	})
}

func TestASlotThatWasTakenAwayIsReleasedOnce(t *testing.T) {
	p := newPool(1, 0)
	first, _ := p.take(portOf("a", "web"), netip.IPv6Loopback(), func() {})
	second, replaced := p.take(portOf("b", "web"), netip.IPv6Loopback(), func() {})
	require.Nil(t, second, "it has no more than one")
	require.Nil(t, replaced)
	second, replaced = p.take(portOf("a", "web"), netip.IPv6Loopback(), func() {})
	require.Equal(t, first, replaced)
	p.release(first)
	assert.Len(t, p.slots, 1)
	p.release(second)
	assert.Empty(t, p.slots)
	assert.Empty(t, p.shares.ports)
	assert.Empty(t, p.shares.namespaces)
}

// A newcomer costs the same however many there are.
func BenchmarkPool(b *testing.B) {
	p := newPool(1<<14, 0)
	port := portOf("a", "web")
	for i := 0; b.Loop(); i++ {
		p.take(port, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), func() {})
	}
}
