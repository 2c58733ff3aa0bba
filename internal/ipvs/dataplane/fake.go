package dataplane

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Fake is a model of the kernel for tests that run anywhere. It checks what the kernel checks: that added objects are
// new, that changed ones exist, that a scheduler has a module, that families match, that an address can be a host's. It
// forwards no packets: tests set the connections of real servers with [Fake.SetConnections].
type Fake struct {
	mu       sync.Mutex
	servers  map[ServerKey]*fakeServer
	addrs    map[netip.Addr]bool
	link     bool
	timeouts Timeouts
	calls    Calls

	// Schedulers are the available ones. Nil means rr, wrr, lc, sh and mh.
	Schedulers []string
	// Fail, if set, is called before each modifying call, with a text such as "add server 10.96.0.1:80/TCP". If it
	// returns an error, the call returns that and changes nothing.
	Fail func(call string) error
}

// Calls counts calls.
type Calls struct {
	// Reads is how many calls there were of Servers, Destinations and Addresses.
	Reads int
	// Writes has every call that changes something.
	Writes []string
}

type fakeServer struct {
	Server
	destinations map[netip.AddrPort]*Destination
}

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake without virtual servers.
func NewFake() *Fake {
	return &Fake{servers: map[ServerKey]*fakeServer{}, addrs: map[netip.Addr]bool{}}
}

// TakeCalls returns the calls since the last time.
func (f *Fake) TakeCalls() Calls {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	f.calls = Calls{}
	return c
}

// SetConnections says how many connections a real server has.
func (f *Fake) SetConnections(key ServerKey, target netip.AddrPort, active, inactive int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.servers[key].destinations[target]
	d.Active, d.Inactive = active, inactive
}

// Timeouts returns what was set.
func (f *Fake) Timeouts() Timeouts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.timeouts
}

// HasLink reports whether the dummy interface exists.
func (f *Fake) HasLink() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.link
}

// Dump returns everything as text, a line for each object.
func (f *Fake) Dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, a := range slices.SortedFunc(maps.Keys(f.addrs), netip.Addr.Compare) {
		fmt.Fprintf(&b, "address %v\n", a)
	}
	for _, key := range slices.SortedFunc(maps.Keys(f.servers), ServerKey.Compare) {
		s := f.servers[key]
		var list []Destination
		for _, t := range slices.SortedFunc(maps.Keys(s.destinations), model.CompareTargets) {
			list = append(list, *s.destinations[t])
		}
		b.WriteString(Text(s.Server, list))
	}
	return b.String()
}

func (f *Fake) read(ctx context.Context) (unlock func(), err error) {
	f.mu.Lock()
	f.calls.Reads++
	return f.mu.Unlock, ctx.Err()
}

// write begins a call that changes something.
func (f *Fake) write(ctx context.Context, format string, args ...any) (unlock func(), err error) {
	f.mu.Lock()
	call := fmt.Sprintf(format, args...)
	f.calls.Writes = append(f.calls.Writes, call)
	if err := ctx.Err(); err != nil {
		return f.mu.Unlock, err
	}
	if f.Fail != nil {
		return f.mu.Unlock, f.Fail(call)
	}
	return f.mu.Unlock, nil
}

// Servers implements [Interface].
func (f *Fake) Servers(ctx context.Context) ([]Server, error) {
	unlock, err := f.read(ctx)
	defer unlock()
	if err != nil {
		return nil, err
	}
	var list []Server
	for _, key := range slices.SortedFunc(maps.Keys(f.servers), ServerKey.Compare) {
		list = append(list, f.servers[key].Server)
	}
	return list, nil
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
	unlock, err := f.write(ctx, "add server %v", s.ServerKey)
	defer unlock()
	if err == nil {
		err = f.checkServer(s)
	}
	if err != nil {
		return err
	}
	if f.servers[s.ServerKey] != nil {
		return syscall.EEXIST
	}
	f.servers[s.ServerKey] = &fakeServer{Server: s, destinations: map[netip.AddrPort]*Destination{}}
	return nil
}

// UpdateServer implements [Interface].
func (f *Fake) UpdateServer(ctx context.Context, s Server) error {
	unlock, err := f.write(ctx, "update server %v", s.ServerKey)
	defer unlock()
	if err == nil {
		err = f.checkServer(s)
	}
	if err != nil {
		return err
	}
	old := f.servers[s.ServerKey]
	if old == nil {
		return syscall.ESRCH
	}
	old.Server = s
	return nil
}

// DeleteServer implements [Interface].
func (f *Fake) DeleteServer(ctx context.Context, key ServerKey) error {
	unlock, err := f.write(ctx, "delete server %v", key)
	defer unlock()
	if err != nil {
		return err
	}
	if f.servers[key] == nil {
		return syscall.ESRCH
	}
	delete(f.servers, key)
	return nil
}

// Destinations implements [Interface].
func (f *Fake) Destinations(ctx context.Context, key ServerKey) ([]Destination, error) {
	unlock, err := f.read(ctx)
	defer unlock()
	if err != nil {
		return nil, err
	}
	s := f.servers[key]
	if s == nil {
		return nil, nil // the kernel dumps nothing
	}
	var list []Destination
	for _, t := range slices.SortedFunc(maps.Keys(s.destinations), model.CompareTargets) {
		list = append(list, *s.destinations[t])
	}
	return list, nil
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
	unlock, err := f.write(ctx, "add destination %v to %v", d.Target, key)
	defer unlock()
	if err != nil {
		return err
	}
	s, old, err := f.destination(key, d.Target)
	if err != nil {
		return err
	}
	if old != nil {
		return syscall.EEXIST
	}
	s.destinations[d.Target] = &Destination{Target: d.Target, Weight: d.Weight}
	return nil
}

// UpdateDestination implements [Interface].
func (f *Fake) UpdateDestination(ctx context.Context, key ServerKey, d Destination) error {
	unlock, err := f.write(ctx, "update destination %v of %v to weight %d", d.Target, key, d.Weight)
	defer unlock()
	if err != nil {
		return err
	}
	_, old, err := f.destination(key, d.Target)
	if err != nil {
		return err
	}
	if old == nil {
		return syscall.ENOENT
	}
	old.Weight = d.Weight
	return nil
}

// DeleteDestination implements [Interface].
func (f *Fake) DeleteDestination(ctx context.Context, key ServerKey, target netip.AddrPort) error {
	unlock, err := f.write(ctx, "delete destination %v of %v", target, key)
	defer unlock()
	if err != nil {
		return err
	}
	s, old, err := f.destination(key, target)
	if err != nil {
		return err
	}
	if old == nil {
		return syscall.ENOENT
	}
	delete(s.destinations, target)
	return nil
}

// SetTimeouts implements [Interface].
func (f *Fake) SetTimeouts(ctx context.Context, t Timeouts) error {
	unlock, err := f.write(ctx, "set timeouts %v", t)
	defer unlock()
	if err == nil {
		f.timeouts = t
	}
	return err
}

// Addresses implements [Interface].
func (f *Fake) Addresses(ctx context.Context, family model.Family) ([]netip.Addr, error) {
	unlock, err := f.read(ctx)
	defer unlock()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, a := range slices.SortedFunc(maps.Keys(f.addrs), netip.Addr.Compare) {
		if model.FamilyOf(a) == family {
			list = append(list, a)
		}
	}
	return list, nil
}

// AddAddress implements [Interface].
func (f *Fake) AddAddress(ctx context.Context, a netip.Addr) error {
	unlock, err := f.write(ctx, "add address %v", a)
	defer unlock()
	if err == nil && a.Is6() && (a.IsUnspecified() || a.IsMulticast() || a.IsLoopback()) {
		return fmt.Errorf("add address %v: %w", a, syscall.EADDRNOTAVAIL)
	}
	if err == nil {
		f.addrs[a], f.link = true, true
	}
	return err
}

// DeleteAddress implements [Interface].
func (f *Fake) DeleteAddress(ctx context.Context, a netip.Addr) error {
	unlock, err := f.write(ctx, "delete address %v", a)
	defer unlock()
	if err == nil {
		delete(f.addrs, a)
	}
	return err
}

// DeleteLink implements [Interface].
func (f *Fake) DeleteLink(ctx context.Context) error {
	unlock, err := f.write(ctx, "delete link")
	defer unlock()
	if err == nil {
		f.link = false
		clear(f.addrs)
	}
	return err
}

// Close implements [Interface]. Everything stays.
func (f *Fake) Close() error { return nil }
