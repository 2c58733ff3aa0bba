package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
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
	used          frontend.RefCounts[string] // by load balancers that HNS has, by ID
	usedByOthers  map[string]bool            // by those of others, when they were listed last
	unused        map[string]bool            // endpoints of the backend that may be unused
	replaced      map[string]bool            // by another endpoint: load balancers that have one of these are due
	// made is what this process has asked for, by ID. HNS may have created something else; asking for the same again
	// would not help.
	made map[string]location
	// HNS was seen to change these fields: in endpoints that an earlier process made they say nothing.
	changesMAC, changesProvider bool
}

// location is where a remote endpoint is: on which node, by the addresses that HNS uses for it.
type location struct {
	mac      string
	provider netip.Addr
}

func locationOf(x *dp.Endpoint) location { return location{strings.ToLower(x.MAC), x.Provider} }

func newEndpoints() *endpoints {
	return &endpoints{local: map[netip.Addr]string{}, remote: map[netip.Addr]string{}, byID: map[string]*dp.Endpoint{},
		usedByOthers: map[string]bool{}, unused: map[string]bool{}, replaced: map[string]bool{},
		made: map[string]location{}}
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
	maps.DeleteFunc(e.made, func(id string, _ location) bool { return e.byID[id] == nil })
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

// isOwn reports whether the backend has made an endpoint, or kube-proxy has: nothing else makes remote endpoints with
// such hardware addresses.
func isOwn(x *dp.Endpoint) bool {
	return strings.HasPrefix(x.Name, namePrefix) ||
		x.Remote && len(x.IPs) == 1 && strings.EqualFold(x.MAC, remoteMAC(x.IPs[0]))
}

// serves reports whether an endpoint is as good as a new one like want would be. Those of others are used as they are.
func (e *endpoints) serves(id string, want *dp.Endpoint) bool {
	x := e.byID[id]
	if !isOwn(x) {
		return true
	}
	if made, ok := e.made[id]; ok {
		return made == locationOf(want)
	}
	return (e.changesMAC || strings.EqualFold(x.MAC, want.MAC)) && (e.changesProvider || x.Provider == want.Provider)
}

// remove removes an endpoint that HNS no longer has.
func (e *endpoints) remove(id string) {
	x := e.byID[id]
	delete(e.unused, id)
	delete(e.made, id)
	delete(e.byID, id)
	for _, a := range x.IPs {
		if e.remote[a] == id {
			delete(e.remote, a)
		}
		if e.local[a] == id {
			delete(e.local, a)
		}
	}
}

// release drops one user of an endpoint.
func (e *endpoints) release(id string) {
	if x := e.byID[id]; e.used.Remove(id) && x != nil && isOwn(x) {
		e.unused[id] = true
	}
}

// setHave records the load balancer that HNS has.
func (f *family) setHave(b *balancer, lb *dp.LoadBalancer) {
	if lb != nil {
		for _, id := range lb.Endpoints {
			f.endpoints.used.Add(id)
		}
	}
	if b.have != nil {
		for _, id := range b.have.Endpoints {
			f.endpoints.release(id)
		}
	}
	b.have = lb
}

// setVIP notes the endpoint of a balancer's own address.
func (f *family) setVIP(b *balancer, id string) {
	if id != "" {
		f.endpoints.used.Add(id)
	}
	if b.vip != "" {
		f.endpoints.release(b.vip)
	}
	b.vip = id
}

// reserve notes the cluster IPs. A load balancer that has an endpoint with such an address is due.
func (f *family) reserve(d frontend.Diff[netip.Addr]) {
	for _, a := range d.Removed {
		delete(f.clusterIPs, a)
	}
	for _, a := range d.Added {
		if id, ok := f.endpoints.remote[a]; ok && !f.clusterIPs[a] && f.endpoints.used[id] > 0 {
			f.endpoints.replaced[id] = true
		}
		f.clusterIPs[a] = true
	}
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
// their CNI plugin. A target whose node is not known may be a local pod.
func (f *family) lookup(ctx context.Context, t target) (string, error) {
	if err := f.refused[t.addr]; err != nil && !t.local {
		return "", err // for thousands of load balancers it would be asked thousands of times
	}
	switch {
	case f.clusterIPs[t.addr]:
		f.refused[t.addr] = fmt.Errorf("endpoint %v is the cluster IP of a service", t.addr)
		return "", f.refused[t.addr]
	case f.isOverlay() && t.addr == f.options.SourceVIP:
		f.refused[t.addr] = fmt.Errorf("endpoint %v is the source VIP of this node", t.addr)
		return "", f.refused[t.addr]
	}
	if t.local || t.anywhere {
		id, ok := f.endpoints.local[t.addr]
		_, isRemote := f.endpoints.remote[t.addr]
		if !ok && (t.local || !isRemote) && !f.listedEndpoints {
			if err := f.readEndpoints(ctx); err != nil {
				return "", err
			}
			id, ok = f.endpoints.local[t.addr]
		}
		if ok {
			return id, nil
		}
		if t.local {
			return "", fmt.Errorf("endpoint %v of this node is not in HNS network %q yet", t.addr, f.network.Name)
		}
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
	old, there := f.endpoints.remote[addr]
	if there && f.endpoints.serves(old, &x) {
		return old, nil
	}
	if err := f.refused[addr]; err != nil {
		return "", err
	}
	id, err := f.createEndpoint(ctx, x)
	switch {
	case endsCommit(err):
		return "", err
	case err != nil && !f.listedEndpoints:
		// Another program may have created it in the meantime.
		if err := f.readEndpoints(ctx); err != nil {
			return "", err
		}
		return f.remoteEndpoint(ctx, x)
	case err != nil:
		f.refused[addr] = err
	}
	return id, err
}

// createEndpoint creates an endpoint. HNS may accept only one for each address: then it deletes an obsolete one first.
func (f *family) createEndpoint(ctx context.Context, x dp.Endpoint) (string, error) {
	addr := x.IPs[0]
	old, there := f.endpoints.remote[addr]
	there = there && isOwn(f.endpoints.byID[old])
	made, err := f.dataplane.CreateEndpoint(ctx, f.network.ID, x)
	if err != nil && !endsCommit(err) && there {
		if err := f.deleteEndpoint(ctx, old); err != nil {
			return "", err
		}
		f.endpoints.replaced[old], there = true, false
		made, err = f.dataplane.CreateEndpoint(ctx, f.network.ID, x)
	}
	if err != nil {
		if err = fmt.Errorf("create HNS endpoint %v: %w", addr, err); errors.Is(err, dp.ErrNetworkNotFound) {
			err = unreadable{err}
		}
		return "", err
	}
	if there {
		if f.endpoints.replaced[old] = true; f.endpoints.used[old] == 0 {
			f.endpoints.unused[old] = true
		}
		delete(f.endpoints.remote, addr)
	}
	f.endpoints.made[made.ID] = locationOf(&x)
	f.endpoints.changesMAC = f.endpoints.changesMAC || !strings.EqualFold(x.MAC, made.MAC)
	f.endpoints.changesProvider = f.endpoints.changesProvider || x.Provider != made.Provider
	x.ID, x.MAC, x.Provider = made.ID, made.MAC, made.Provider
	f.endpoints.add(&x, f.key)
	return x.ID, nil
}

func (f *family) deleteEndpoint(ctx context.Context, id string) error {
	if err := f.dataplane.DeleteEndpoint(ctx, id); err != nil && !errors.Is(err, dp.ErrNotFound) {
		return fmt.Errorf("delete HNS endpoint %v: %w", f.endpoints.byID[id].IPs, err)
	}
	f.endpoints.remove(id)
	return nil
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
		if err := f.deleteEndpoint(ctx, id); endsCommit(err) {
			return err
		} else {
			errs.Add(err)
		}
	}
	err := errs.Err()
	if err != nil && f.undeletedEndpoints.Due(err.Error(), time.Now()) {
		klog.FromContext(ctx).Error(err, "Could not delete HNS endpoints; trying again later")
	}
	return err
}
