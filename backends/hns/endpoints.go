package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// namePrefix is the prefix of the names of the backend's endpoints: others are never deleted.
const namePrefix = "kube-proxy-lib "

// sourceVIPName is the name of the endpoint that has the source VIP.
const sourceVIPName = namePrefix + "source VIP"

// endpoints are the HNS endpoints of a network in one family. A local and a remote one may have the same address, when
// a pod's address has moved to another node: they are kept apart (S52).
type endpoints struct {
	local, remote map[netip.Addr]string // IDs
	byID          map[string]*dp.Endpoint
	used          map[string]int  // by load balancers that HNS has, by ID
	usedByOthers  map[string]bool // by those of others, when they were listed last
	unused        map[string]bool // of the backend, perhaps
}

func newEndpoints() *endpoints {
	return &endpoints{local: map[netip.Addr]string{}, remote: map[netip.Addr]string{}, byID: map[string]*dp.Endpoint{},
		used: map[string]int{}, usedByOthers: map[string]bool{}, unused: map[string]bool{}}
}

// set replaces the known endpoints of the network. The counts of their users stay.
func (e *endpoints) set(list []dp.Endpoint, f model.Family) {
	clear(e.local)
	clear(e.remote)
	clear(e.byID)
	clear(e.unused)
	for i := range list {
		e.add(&list[i], f)
	}
}

func (e *endpoints) add(x *dp.Endpoint, f model.Family) {
	e.byID[x.ID] = x
	for _, a := range x.IPs {
		if model.FamilyOf(a) != f {
			continue
		}
		if isOwn(x) {
			e.unused[x.ID] = true
		}
		byAddr := e.local
		if x.Remote {
			byAddr = e.remote
		}
		// Of two remote ones (possible on Windows Server 2019) the one in use is kept.
		if old, there := byAddr[a]; !there || e.used[old] == 0 {
			byAddr[a] = x.ID
		}
	}
}

// isOwn reports whether the backend has made an endpoint.
func isOwn(x *dp.Endpoint) bool { return strings.HasPrefix(x.Name, namePrefix) }

// use counts the users of an endpoint.
func (e *endpoints) use(id string, by int) {
	if e.used[id] += by; e.used[id] <= 0 {
		delete(e.used, id)
		if x := e.byID[id]; x != nil && isOwn(x) {
			e.unused[id] = true
		}
	}
}

// setHave notes what load balancer HNS has.
func (f *family) setHave(b *balancer, lb *dp.LoadBalancer) {
	if lb != nil {
		for _, id := range lb.Endpoints {
			f.endpoints.use(id, 1)
		}
	}
	if b.have != nil {
		for _, id := range b.have.Endpoints {
			f.endpoints.use(id, -1)
		}
	}
	b.have = lb
}

// setVIP notes the endpoint of a balancer's own address.
func (f *family) setVIP(b *balancer, id string) {
	if id != "" {
		f.endpoints.use(id, 1)
	}
	if b.vip != "" {
		f.endpoints.use(b.vip, -1)
	}
	b.vip = id
}

// nodeIP returns the node's address.
func (f *family) nodeIP() (netip.Addr, error) {
	for _, a := range f.nodeIPs {
		if model.FamilyOf(a) == f.key {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the node has no %v address, which its endpoints in an overlay network need", f.key)
}

// lookup returns the HNS endpoint of a target. It creates a remote one that does not exist; local ones are created by
// their CNI plugin.
func (f *family) lookup(ctx context.Context, t target) (string, error) {
	if t.local {
		id, ok := f.endpoints.local[t.addr]
		if !ok && !f.listedEndpoints {
			if err := f.readEndpoints(ctx); err != nil {
				return "", err
			}
			id, ok = f.endpoints.local[t.addr]
		}
		if !ok {
			return "", fmt.Errorf("endpoint %v of this node is not in HNS network %q yet", t.addr, f.network.Name)
		}
		return id, nil
	}
	x := dp.Endpoint{Name: namePrefix + t.addr.String(), IPs: []netip.Addr{t.addr}, MAC: remoteMAC(t.addr),
		Remote: true}
	if f.isOverlay() {
		if x.Provider = f.providers.of(t.addr); !x.Provider.IsValid() {
			// No node has it: an address outside the cluster, which this node reaches.
			nodeIP, err := f.nodeIP()
			if err != nil {
				return "", err
			}
			x.Provider = nodeIP
		}
	}
	return f.remoteEndpoint(ctx, x)
}

// remoteEndpoint returns the remote endpoint of an address. It replaces one of the backend's own that is out of date,
// for example because its node was not known before, and uses those of others as they are.
func (f *family) remoteEndpoint(ctx context.Context, x dp.Endpoint) (string, error) {
	addr := x.IPs[0]
	if id, ok := f.endpoints.remote[addr]; ok {
		old := f.endpoints.byID[id]
		if !isOwn(old) || old.Provider == x.Provider && strings.EqualFold(old.MAC, x.MAC) {
			return id, nil
		}
		delete(f.endpoints.remote, addr)
		if f.endpoints.used[id] == 0 {
			f.endpoints.unused[id] = true
		}
	}
	if err := f.refused[addr]; err != nil {
		return "", err // for thousands of load balancers it would be asked thousands of times
	}
	id, err := f.createEndpoint(ctx, x)
	if err != nil && !f.listedEndpoints {
		// Somebody else may have created it in the meantime.
		if err := f.readEndpoints(ctx); err != nil {
			return "", err
		}
		return f.remoteEndpoint(ctx, x)
	}
	if err != nil {
		f.refused[addr] = err
	}
	return id, err
}

func (f *family) createEndpoint(ctx context.Context, x dp.Endpoint) (string, error) {
	id, err := f.dataplane.CreateEndpoint(ctx, f.network.ID, x)
	if err != nil {
		return "", fmt.Errorf("create HNS endpoint %v: %w", x.IPs[0], err)
	}
	x.ID = id
	f.endpoints.add(&x, f.key)
	return id, nil
}

// vipEndpoint returns the endpoint of a service's own address: the node answers for it.
func (f *family) vipEndpoint(ctx context.Context, addr netip.Addr) (string, error) {
	nodeIP, mac, err := f.host()
	if err != nil {
		return "", err
	}
	return f.remoteEndpoint(ctx, dp.Endpoint{Name: namePrefix + addr.String(), IPs: []netip.Addr{addr}, MAC: mac,
		Remote: true, Provider: nodeIP})
}

// host returns the node's address and the hardware address of its interface.
func (f *family) host() (netip.Addr, string, error) {
	nodeIP, err := f.nodeIP()
	if err != nil {
		return netip.Addr{}, "", err
	}
	mac, err := f.options.hostMAC(nodeIP)
	return nodeIP, mac, err
}

// ensureSourceVIP creates the local endpoint that has the source VIP, unless it exists.
func (f *family) ensureSourceVIP(ctx context.Context) error {
	if _, ok := f.endpoints.local[f.options.SourceVIP]; ok {
		return nil
	}
	nodeIP, mac, err := f.host()
	if err != nil {
		return err
	}
	_, err = f.createEndpoint(ctx, dp.Endpoint{Name: sourceVIPName, IPs: []netip.Addr{f.options.SourceVIP}, MAC: mac,
		Provider: nodeIP})
	return err
}

// sourceVIP returns what endpoints see as the source, in overlay networks: the node's address if one of them is a node
// or not in the cluster, and so cannot answer to an address that only pods know.
func (f *family) sourceVIP(targets []target) (netip.Addr, error) {
	if !f.isOverlay() {
		return netip.Addr{}, nil
	}
	for _, t := range targets {
		if p := f.providers.of(t.addr); !t.local && (!p.IsValid() || p == t.addr) {
			return f.nodeIP()
		}
	}
	return f.options.SourceVIP, nil
}

// remoteMAC returns the hardware address of a remote endpoint. It is never on the wire (S52).
func remoteMAC(a netip.Addr) string {
	b := a.AsSlice()
	if a.Is6() {
		b = []byte{b[15], b[14], b[13], b[12]}
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// deleteUnused deletes the backend's endpoints that no load balancer has. What fails is tried again at the next commit.
func (f *family) deleteUnused(ctx context.Context) error {
	var errs failures.List
	for _, id := range slices.Sorted(maps.Keys(f.endpoints.unused)) {
		x := f.endpoints.byID[id]
		if x == nil || f.endpoints.used[id] > 0 || f.endpoints.usedByOthers[id] ||
			x.Name == sourceVIPName && !f.skipped {
			delete(f.endpoints.unused, id)
			continue
		}
		if err := f.dataplane.DeleteEndpoint(ctx, id); err != nil && !errors.Is(err, dp.ErrNotFound) {
			err = fmt.Errorf("delete HNS endpoint %v: %w", x.IPs, err)
			if errors.Is(err, dp.ErrNotRunning) {
				return err
			}
			errs.Add(err)
			continue
		}
		delete(f.endpoints.unused, id)
		delete(f.endpoints.byID, id)
		for _, a := range x.IPs {
			if f.endpoints.remote[a] == id {
				delete(f.endpoints.remote, a)
			}
			if f.endpoints.local[a] == id {
				delete(f.endpoints.local, a)
			}
		}
	}
	err := errs.Err()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not delete HNS endpoints, trying again later")
	}
	return err
}
