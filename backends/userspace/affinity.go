package userspace

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// contact is the endpoint that a client with session affinity stays with.
type contact struct {
	endpoint netip.AddrPort
	at       time.Time
}

// Limits of the clients with affinity that are remembered: by a port, and by all ports together. A port may exceed the
// latter by a few.
const (
	maxContacts    = 1 << 16
	maxAllContacts = 1 << 18
	minContacts    = 1 << 8
)

// contacts are the clients with session affinity of a port. The port's lock guards them.
type contacts struct {
	byClient map[netip.Addr]contact
	all      *atomic.Int64 // number of clients of all ports
	sweeping bool          // a sweep is scheduled
}

// put remembers the endpoint of a client. Too many clients make it forget another one, the one idle for longest among a
// few.
func (c *contacts) put(client netip.Addr, next contact) {
	if _, known := c.byClient[client]; !known {
		if n := len(c.byClient); n >= maxContacts || n >= minContacts && c.all.Load() >= maxAllContacts {
			c.forget(c.oldest())
		}
		if c.byClient == nil {
			c.byClient = map[netip.Addr]contact{}
		}
		c.all.Add(1)
	}
	c.byClient[client] = next
}

func (c *contacts) oldest() (victim netip.Addr) {
	var oldest time.Time
	seen := 0
	for addr, known := range c.byClient {
		if seen == 0 || known.at.Before(oldest) {
			victim, oldest = addr, known.at
		}
		if seen++; seen == evictFrom {
			break
		}
	}
	return victim
}

func (c *contacts) forget(client netip.Addr) {
	if _, known := c.byClient[client]; known {
		delete(c.byClient, client)
		c.all.Add(-1)
	}
}

// clear forgets all clients. A map that was once big stays big, so a new one takes its place.
func (c *contacts) clear() {
	c.all.Add(-int64(len(c.byClient)))
	c.byClient = nil
}

// sweep forgets the clients that were last seen before a time.
func (c *contacts) sweep(before time.Time) {
	left := map[netip.Addr]contact{}
	for client, known := range c.byClient {
		if known.at.After(before) {
			left[client] = known
		}
	}
	c.clear()
	if len(left) > 0 {
		c.byClient = left
		c.all.Add(int64(len(left)))
	}
}
