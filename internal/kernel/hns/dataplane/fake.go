package dataplane

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/calls"
)

// Fake is a model of HNS for tests that run anywhere. It checks what HNS checks: that networks and endpoints exist,
// that a frontend has one load balancer, that a load balancer has endpoints. Faults of real ones can be switched on.
// Its methods may be called from several goroutines; set the exported fields before.
type Fake struct {
	// Log has the calls, such as "create load balancer 10.96.0.1:80/TCP".
	calls.Log

	networks  map[string]*Network // by name
	endpoints map[string]*fakeEndpoint
	balancers map[string]*LoadBalancer
	byKey     map[Key]*LoadBalancer
	unusable  map[string]bool
	reserved  map[Key]bool
	serial    int

	// Supported is what Features returns. NewFake sets everything, as of Windows Server 2025.
	Supported Features
	// RefuseModify: Features promises ModifyLoadBalancer, but UpdateLoadBalancer always fails with ErrNotSupported, as
	// on a host whose update is incomplete (E_NOTIMPL).
	RefuseModify bool
	// MaxEndpoints is how many endpoints a load balancer may have; 0: any number.
	MaxEndpoints int
	// UniqueAddresses: a network has one endpoint for each address. Without it CreateEndpoint creates any number, as a
	// fault of Windows Server 2019 does. AddEndpoint, which stands for a CNI plugin, is not checked.
	UniqueAddresses bool
	// Normalise and NormaliseEndpoint, if set, change what is created or updated. With NormaliseLate the answer to the
	// creation does not show it yet.
	Normalise         func(*LoadBalancer)
	NormaliseEndpoint func(*Endpoint)
	NormaliseLate     bool
	// Host are the addresses of the node. Set them before a backend is made.
	Host []netip.Addr
}

type fakeEndpoint struct {
	Endpoint
	network string // ID
}

// HostAddresses returns the addresses of the node.
func (f *Fake) HostAddresses() []netip.Addr { return f.Host }

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake without networks.
func NewFake() *Fake {
	return &Fake{networks: map[string]*Network{}, endpoints: map[string]*fakeEndpoint{},
		balancers: map[string]*LoadBalancer{}, byKey: map[Key]*LoadBalancer{}, unusable: map[string]bool{},
		reserved: map[Key]bool{},
		Supported: Features{V2: true, RemoteSubnet: true, DSR: true, SessionAffinity: true, IPv6DualStack: true,
			ModifyLoadBalancer: true}}
}

func (f *Fake) newID() string {
	f.serial++
	return fmt.Sprintf("00000000-0000-0000-0000-%012d", f.serial)
}

// SetNetwork adds a network, or changes the one of that name; with renewed it becomes another network of the same name,
// as if its CNI plugin had created it again: the endpoints of the old one are gone, and load balancers point at
// nothing.
func (f *Fake) SetNetwork(n Network, renewed bool) (id string) {
	f.Lock()
	defer f.Unlock()
	old := f.networks[n.Name]
	switch {
	case old == nil:
		n.ID = f.newID()
	case renewed:
		maps.DeleteFunc(f.endpoints, func(_ string, e *fakeEndpoint) bool { return e.network == old.ID })
		n.ID = f.newID()
	default:
		n.ID = old.ID
	}
	f.networks[n.Name] = &n
	return n.ID
}

// DeleteNetwork deletes a network with its endpoints.
func (f *Fake) DeleteNetwork(name string) {
	f.Lock()
	defer f.Unlock()
	if n := f.networks[name]; n != nil {
		maps.DeleteFunc(f.endpoints, func(_ string, e *fakeEndpoint) bool { return e.network == n.ID })
		delete(f.networks, name)
	}
}

// AddEndpoint adds another program's endpoint to a network, for example a pod's, and returns its ID.
func (f *Fake) AddEndpoint(network string, e Endpoint) string {
	f.Lock()
	defer f.Unlock()
	e.ID = f.newID()
	f.endpoints[e.ID] = &fakeEndpoint{Endpoint: e, network: f.networks[network].ID}
	return e.ID
}

// RemoveEndpoint removes the endpoints of an address behind the backend's back.
func (f *Fake) RemoveEndpoint(a netip.Addr) {
	f.Lock()
	defer f.Unlock()
	maps.DeleteFunc(f.endpoints, func(_ string, e *fakeEndpoint) bool { return slices.Contains(e.IPs, a) })
}

// AddLoadBalancer adds another program's load balancer, unchecked.
func (f *Fake) AddLoadBalancer(lb LoadBalancer) string {
	f.Lock()
	defer f.Unlock()
	return f.add(lb)
}

func (f *Fake) add(lb LoadBalancer) string {
	lb.ID = f.newID()
	lb.Endpoints = slices.Clone(lb.Endpoints)
	f.balancers[lb.ID], f.byKey[lb.Key] = &lb, &lb
	return lb.ID
}

func (f *Fake) remove(id string) {
	delete(f.byKey, f.balancers[id].Key)
	delete(f.balancers, id)
}

// RemoveLoadBalancers removes load balancers behind the backend's back.
func (f *Fake) RemoveLoadBalancers(which func(LoadBalancer) bool) {
	f.Lock()
	defer f.Unlock()
	for id, lb := range f.balancers {
		if which(*lb) {
			f.remove(id)
		}
	}
}

// MakeUnusable makes an ID unusable, as happens on Windows Server 2019: the load balancer is listed, but cannot be
// changed or deleted until MakeUsable is called.
func (f *Fake) MakeUnusable(key Key) {
	f.Lock()
	defer f.Unlock()
	for id, lb := range f.balancers {
		if lb.Key == key {
			f.unusable[id] = true
		}
	}
}

// MakeUsable undoes every MakeUnusable.
func (f *Fake) MakeUsable() {
	f.Lock()
	defer f.Unlock()
	clear(f.unusable)
}

// Reserve makes the host itself use a port, as a listening process does: HNS refuses a load balancer there.
func (f *Fake) Reserve(key Key) {
	f.Lock()
	defer f.Unlock()
	f.reserved[key] = true
}

// NumLoadBalancers returns the number of load balancers.
func (f *Fake) NumLoadBalancers() int {
	f.Lock()
	defer f.Unlock()
	return len(f.balancers)
}

// Dump returns everything as text, a line for each object, without IDs.
func (f *Fake) Dump() string {
	f.Lock()
	defer f.Unlock()
	var endpoints, balancers []string
	for _, e := range f.endpoints {
		endpoints = append(endpoints, e.Text())
	}
	list := slices.SortedFunc(maps.Values(f.balancers), func(a, b *LoadBalancer) int { return a.Key.Compare(b.Key) })
	lookUp := func(id string) *Endpoint {
		if e := f.endpoints[id]; e != nil {
			return &e.Endpoint
		}
		return nil
	}
	for _, lb := range list {
		balancers = append(balancers, lb.Text(lookUp))
	}
	slices.Sort(endpoints)
	return strings.Join(endpoints, "") + strings.Join(balancers, "")
}

// Features implements [Interface].
func (f *Fake) Features(ctx context.Context) (Features, error) {
	return calls.Read(ctx, &f.Log, "Features", func() (Features, error) { return f.Supported, nil })
}

// Network implements [Interface].
func (f *Fake) Network(ctx context.Context, name string) (Network, error) {
	return calls.Read(ctx, &f.Log, "Network", func() (Network, error) {
		if n := f.networks[name]; n != nil {
			return *n, nil
		}
		return Network{}, fmt.Errorf("network %q: %w", name, ErrNotFound)
	})
}

// Endpoints implements [Interface].
func (f *Fake) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	return calls.Read(ctx, &f.Log, "Endpoints", func() (list []Endpoint, _ error) {
		for _, id := range slices.Sorted(maps.Keys(f.endpoints)) {
			if e := f.endpoints[id]; e.network == network {
				list = append(list, e.Endpoint)
			}
		}
		return list, nil
	})
}

// EndpointByName implements [Interface].
func (f *Fake) EndpointByName(ctx context.Context, name string) (Endpoint, error) {
	return calls.Read(ctx, &f.Log, "EndpointByName", func() (Endpoint, error) {
		for _, e := range f.endpoints {
			if e.Name == name {
				return e.Endpoint, nil
			}
		}
		return Endpoint{}, fmt.Errorf("endpoint %q: %w", name, ErrNotFound)
	})
}

// CreateEndpoint implements [Interface].
func (f *Fake) CreateEndpoint(ctx context.Context, network string, e Endpoint) (made Endpoint, err error) {
	err = f.Write(ctx, "create endpoint "+joinAddrs(e.IPs), func() error {
		isIt := func(n *Network) bool { return n.ID == network }
		if !slices.ContainsFunc(slices.Collect(maps.Values(f.networks)), isIt) {
			return fmt.Errorf("network %s: %w (%w)", network, ErrNetworkNotFound, ErrNotFound)
		}
		if len(e.IPs) != 1 || !e.IPs[0].IsValid() {
			return fmt.Errorf("an address provided is invalid or reserved (0x803b002f): %w", ErrInvalidAddress)
		}
		isTaken := func(other *fakeEndpoint) bool {
			return other.network == network && slices.Contains(other.IPs, e.IPs[0])
		}
		if f.UniqueAddresses && slices.ContainsFunc(slices.Collect(maps.Values(f.endpoints)), isTaken) {
			return fmt.Errorf("an address provided is invalid or reserved (0x803b002f): %w", ErrInvalidAddress)
		}
		e.ID = f.newID()
		made = e
		if f.NormaliseEndpoint != nil {
			f.NormaliseEndpoint(&e)
		}
		if !f.NormaliseLate {
			made = e
		}
		f.endpoints[e.ID] = &fakeEndpoint{Endpoint: e, network: network}
		return nil
	})
	return made, err
}

// DeleteEndpoint implements [Interface].
func (f *Fake) DeleteEndpoint(ctx context.Context, id string) error {
	f.Lock()
	what := id
	if e := f.endpoints[id]; e != nil {
		what = joinAddrs(e.IPs)
	}
	f.Unlock()
	return f.Write(ctx, "delete endpoint "+what, func() error {
		if f.endpoints[id] == nil {
			return fmt.Errorf("endpoint %s: %w", id, ErrNotFound)
		}
		delete(f.endpoints, id)
		return nil
	})
}

// LoadBalancers implements [Interface].
func (f *Fake) LoadBalancers(ctx context.Context) ([]LoadBalancer, error) {
	return calls.Read(ctx, &f.Log, "LoadBalancers", func() (list []LoadBalancer, _ error) {
		for _, id := range slices.Sorted(maps.Keys(f.balancers)) {
			lb := *f.balancers[id]
			lb.Endpoints = slices.Clone(lb.Endpoints)
			slices.Reverse(lb.Endpoints) // HNS keeps no order
			list = append(list, lb)
		}
		return list, nil
	})
}

// check checks what HNS checks of a load balancer.
func (f *Fake) check(lb *LoadBalancer) error {
	if len(lb.Endpoints) == 0 {
		return fmt.Errorf("the reference is invalid in the JSON document: a reference is required (0x803b001c)")
	}
	if f.MaxEndpoints > 0 && len(lb.Endpoints) > f.MaxEndpoints {
		return fmt.Errorf("the parameter is incorrect: %d endpoints (0x57)", len(lb.Endpoints))
	}
	for _, id := range lb.Endpoints {
		if f.endpoints[id] == nil {
			return fmt.Errorf("endpoint %s: %w", id, ErrNotFound)
		}
	}
	return nil
}

// CreateLoadBalancer implements [Interface].
func (f *Fake) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (made LoadBalancer, err error) {
	err = f.Write(ctx, "create load balancer "+lb.Key.String(), func() error {
		if err := f.check(&lb); err != nil {
			return err
		}
		if f.reserved[lb.Key] || f.byKey[lb.Key] != nil {
			return fmt.Errorf("the specified port (0x803b0013) %w", ErrAlreadyExists)
		}
		made = lb
		if f.Normalise != nil {
			f.Normalise(&lb)
		}
		if !f.NormaliseLate {
			made = lb
		}
		made.ID = f.add(lb)
		return nil
	})
	return made, err
}

// UpdateLoadBalancer implements [Interface].
func (f *Fake) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	return f.Write(ctx, "update load balancer "+lb.Key.String(), func() error {
		if f.RefuseModify || !f.Supported.ModifyLoadBalancer {
			return fmt.Errorf("modify: %w", ErrNotSupported)
		}
		old := f.balancers[lb.ID]
		if old == nil {
			return fmt.Errorf("load balancer %s: %w", lb.ID, ErrNotFound)
		}
		if f.unusable[lb.ID] {
			return fmt.Errorf("the object with ID %s cannot be opened (0x803b0000)", lb.ID)
		}
		if err := f.check(&lb); err != nil {
			return err
		}
		old.Endpoints, old.SourceVIP = slices.Clone(lb.Endpoints), lb.SourceVIP
		if f.Normalise != nil {
			f.Normalise(old)
		}
		return nil
	})
}

// DeleteLoadBalancer implements [Interface].
func (f *Fake) DeleteLoadBalancer(ctx context.Context, id string) error {
	f.Lock()
	what := id
	if lb := f.balancers[id]; lb != nil {
		what = lb.Key.String()
	}
	f.Unlock()
	return f.Write(ctx, "delete load balancer "+what, func() error {
		if f.balancers[id] == nil {
			return fmt.Errorf("load balancer %s: %w", id, ErrNotFound)
		}
		if f.unusable[id] {
			return fmt.Errorf("the object with ID %s cannot be opened (0x803b0000)", id)
		}
		f.remove(id)
		return nil
	})
}
