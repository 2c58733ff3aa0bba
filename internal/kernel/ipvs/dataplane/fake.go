package dataplane

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/calls"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Fake is a model of the kernel for tests that run anywhere. It checks what the kernel checks: that added objects are
// new, that changed ones exist, that a scheduler has a module, that families match, that an address can be a host's. It
// forwards no packets: tests set the connections of real servers with [Fake.SetConnections].
type Fake struct {
	// Log has the calls, such as "add virtual server 10.96.0.1:80/TCP".
	calls.Log

	servers  map[ServerKey]*fakeServer
	addrs    map[netip.Addr]bool
	link     bool
	drift    chan struct{}
	drifted  map[model.Family]bool
	delivery map[model.Family]uint32
	timeouts Timeouts

	// Schedulers are the available ones. Nil means rr, wrr, lc, sh and mh.
	Schedulers []string
}

type fakeServer struct {
	Server
	destinations map[netip.AddrPort]*Destination
}

// list returns the real servers.
func (s *fakeServer) list() (list []Destination) {
	for _, t := range slices.SortedFunc(maps.Keys(s.destinations), model.CompareTargets) {
		list = append(list, *s.destinations[t])
	}
	return list
}

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake without virtual servers.
func NewFake() *Fake {
	return &Fake{servers: map[ServerKey]*fakeServer{}, addrs: map[netip.Addr]bool{}, drift: make(chan struct{}, 1),
		drifted: map[model.Family]bool{}, delivery: map[model.Family]uint32{}}
}

// SetConnections says how many connections a real server has.
func (f *Fake) SetConnections(key ServerKey, target netip.AddrPort, active, inactive int) {
	f.Lock()
	defer f.Unlock()
	d := f.servers[key].destinations[target]
	d.Active, d.Inactive = active, inactive
}

// Timeouts returns what was set.
func (f *Fake) Timeouts() Timeouts {
	f.Lock()
	defer f.Unlock()
	return f.timeouts
}

// HasLink reports whether the dummy interface exists.
func (f *Fake) HasLink() bool {
	f.Lock()
	defer f.Unlock()
	return f.link
}

// DeleteAsSomebodyElse deletes addresses as another program would, or the dummy interface if none is given: Drift and
// Drifted report it.
func (f *Fake) DeleteAsSomebodyElse(addrs ...netip.Addr) {
	f.Lock()
	defer f.Unlock()
	if len(addrs) == 0 {
		f.link = false
		addrs = slices.Collect(maps.Keys(f.addrs))
	}
	for _, a := range addrs {
		if f.addrs[a] {
			delete(f.addrs, a)
			f.drifted[model.FamilyOf(a)] = true
		}
	}
	select {
	case f.drift <- struct{}{}:
	default:
	}
}

// SetDelivery changes the bit by which packets are delivered, as another program or an earlier process would:
// [IncompleteDelivery] if a part of what delivers them was deleted.
func (f *Fake) SetDelivery(family model.Family, mark uint32) {
	f.Lock()
	defer f.Unlock()
	f.delivery[family] = mark
}

// Dump returns everything as text, a line for each object.
func (f *Fake) Dump() string {
	f.Lock()
	defer f.Unlock()
	var b strings.Builder
	for _, a := range slices.SortedFunc(maps.Keys(f.addrs), netip.Addr.Compare) {
		fmt.Fprintf(&b, "address %v\n", a)
	}
	for _, family := range model.Families() {
		if mark := f.delivery[family]; mark != 0 {
			fmt.Fprintf(&b, "deliver %v mark 0x%08x\n", family, mark)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(f.servers), ServerKey.Compare) {
		s := f.servers[key]
		b.WriteString(Text(s.Server, s.list()))
	}
	return b.String()
}

// write runs a call that changes something; format and args name it in the log, and its error begins with that.
func (f *Fake) write(ctx context.Context, change func() error, format string, args ...any) error {
	call := fmt.Sprintf(format, args...)
	if err := f.Write(ctx, call, change); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}

// Servers implements [Interface].
func (f *Fake) Servers(ctx context.Context) ([]Server, error) {
	return calls.Read(ctx, &f.Log, "Servers", func() (list []Server, _ error) {
		for _, key := range slices.SortedFunc(maps.Keys(f.servers), ServerKey.Compare) {
			list = append(list, f.servers[key].Server)
		}
		return list, nil
	})
}

func (f *Fake) checkServer(s Server) error {
	byMark := s.Mark != 0
	if byMark == s.Addr.IsValid() || byMark != (s.Port == 0) || byMark != (s.Protocol == 0) {
		return syscall.EINVAL
	}
	if !byMark && model.FamilyOf(s.Addr) != s.Family || s.Flags&Persistent != 0 && s.Persistence <= 0 {
		return syscall.EINVAL
	}
	schedulers := f.Schedulers
	if schedulers == nil {
		schedulers = []string{"rr", "wrr", "lc", "sh", "mh"}
	}
	if !slices.Contains(schedulers, s.Scheduler) {
		return syscall.ENOENT
	}
	return nil
}

// AddServer implements [Interface].
func (f *Fake) AddServer(ctx context.Context, s Server) error {
	return f.write(ctx, func() error {
		if err := f.checkServer(s); err != nil {
			return err
		}
		if f.servers[s.ServerKey] != nil {
			return syscall.EEXIST
		}
		f.servers[s.ServerKey] = &fakeServer{Server: s, destinations: map[netip.AddrPort]*Destination{}}
		return nil
	}, "add virtual server %v", s.ServerKey)
}

// UpdateServer implements [Interface].
func (f *Fake) UpdateServer(ctx context.Context, s Server) error {
	return f.write(ctx, func() error {
		if err := f.checkServer(s); err != nil {
			return err
		}
		old := f.servers[s.ServerKey]
		if old == nil {
			return syscall.ESRCH
		}
		old.Server = s
		return nil
	}, "change virtual server %v", s.ServerKey)
}

// DeleteServer implements [Interface].
func (f *Fake) DeleteServer(ctx context.Context, key ServerKey) error {
	return ignoreMissing(f.write(ctx, func() error {
		delete(f.servers, key)
		return nil
	}, "delete virtual server %v", key))
}

// Destinations implements [Interface].
func (f *Fake) Destinations(ctx context.Context, key ServerKey) ([]Destination, error) {
	return calls.Read(ctx, &f.Log, "Destinations", func() ([]Destination, error) {
		if s := f.servers[key]; s != nil {
			return s.list(), nil
		}
		return nil, nil // the kernel dumps nothing
	})
}

// destination returns the virtual server and its real server, if they exist.
func (f *Fake) destination(key ServerKey, target netip.AddrPort) (*fakeServer, *Destination, error) {
	s := f.servers[key]
	if s == nil {
		return nil, nil, syscall.ESRCH
	}
	if target.Port() == 0 || model.FamilyOf(target.Addr()) != key.Family || !isHost(target.Addr()) {
		return nil, nil, syscall.EINVAL
	}
	return s, s.destinations[target], nil
}

// isHost reports whether the kernel accepts an address as a host's: not, for example, the broadcast addresses of its
// networks.
func isHost(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255}) &&
		!(a.Is6() && a.IsLinkLocalUnicast())
}

// AddDestination implements [Interface].
func (f *Fake) AddDestination(ctx context.Context, key ServerKey, d Destination) error {
	return f.write(ctx, func() error {
		s, old, err := f.destination(key, d.Target)
		if err != nil {
			return err
		}
		if old != nil {
			return syscall.EEXIST
		}
		s.destinations[d.Target] = &Destination{Target: d.Target, Weight: d.Weight}
		return nil
	}, "add endpoint %v to %v", d.Target, key)
}

// UpdateDestination implements [Interface].
func (f *Fake) UpdateDestination(ctx context.Context, key ServerKey, d Destination) error {
	return f.write(ctx, func() error {
		_, old, err := f.destination(key, d.Target)
		if err != nil {
			return err
		}
		if old == nil {
			return syscall.ENOENT
		}
		old.Weight = d.Weight
		return nil
	}, "change endpoint %v of %v to weight %d", d.Target, key, d.Weight)
}

// DeleteDestination implements [Interface].
func (f *Fake) DeleteDestination(ctx context.Context, key ServerKey, target netip.AddrPort) error {
	return ignoreMissing(f.write(ctx, func() error {
		s, _, err := f.destination(key, target)
		if err == nil {
			delete(s.destinations, target)
		}
		return err
	}, "delete endpoint %v of %v", target, key))
}

// SetTimeouts implements [Interface].
func (f *Fake) SetTimeouts(ctx context.Context, t Timeouts) error {
	return f.write(ctx, func() error {
		f.timeouts = t
		return nil
	}, "set timeouts %v", t)
}

// Addresses implements [Interface].
func (f *Fake) Addresses(ctx context.Context, family model.Family) ([]netip.Addr, error) {
	return calls.Read(ctx, &f.Log, "Addresses", func() ([]netip.Addr, error) {
		f.drifted[family] = false
		list := slices.SortedFunc(maps.Keys(f.addrs), netip.Addr.Compare)
		return slices.DeleteFunc(list, func(a netip.Addr) bool { return model.FamilyOf(a) != family }), nil
	})
}

// AddAddress implements [Interface].
func (f *Fake) AddAddress(ctx context.Context, a netip.Addr) error {
	return f.write(ctx, func() error {
		if a.Is6() && (a.IsUnspecified() || a.IsMulticast() || a.IsLoopback()) {
			return syscall.EADDRNOTAVAIL
		}
		f.addrs[a], f.link = true, true
		return nil
	}, "add address %v", a)
}

// DeleteAddress implements [Interface].
func (f *Fake) DeleteAddress(ctx context.Context, a netip.Addr) error {
	return f.write(ctx, func() error {
		delete(f.addrs, a)
		return nil
	}, "delete address %v", a)
}

// DeleteLink implements [Interface].
func (f *Fake) DeleteLink(ctx context.Context) error {
	return f.write(ctx, func() error {
		f.link = false
		clear(f.addrs)
		return nil
	}, "delete link")
}

// Delivery implements [Interface].
func (f *Fake) Delivery(ctx context.Context, family model.Family, want uint32) (uint32, error) {
	return calls.Read(ctx, &f.Log, "Delivery", func() (uint32, error) {
		if mark := f.delivery[family]; mark == 0 || mark == want {
			return mark, nil
		}
		return IncompleteDelivery, nil
	})
}

// Deliver implements [Interface].
func (f *Fake) Deliver(ctx context.Context, family model.Family, mark uint32) error {
	return f.write(ctx, func() error {
		f.delivery[family] = mark
		return nil
	}, "deliver %v packets with mark %#x", family, mark)
}

// Drift implements [Interface].
func (f *Fake) Drift() <-chan struct{} { return f.drift }

// Drifted implements [Interface].
func (f *Fake) Drifted(family model.Family) bool {
	f.Lock()
	defer f.Unlock()
	return f.drifted[family]
}

// Close implements [Interface]. Everything stays.
func (f *Fake) Close() error { return nil }
