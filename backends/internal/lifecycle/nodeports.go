package lifecycle

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// NodePorts are the addresses of the host on which a backend serves node ports. There a node port and an external IP of
// the same number have one owner (S59), which each Sync decides anew if the addresses have changed.
type NodePorts struct {
	*nodeaddr.Tracker
	// Serves reports whether an address that is chosen serves node ports. Nil: all but loopback addresses.
	Serves func(netip.Addr) bool

	node *model.Node
	ips  []netip.Addr // of the tracker, as of which the lists are
	list model.PerFamily[[]netip.Addr]
}

// of returns the addresses of a family: see [frontend.Options].
func (n *NodePorts) of(node *model.Node, f model.Family) []netip.Addr {
	if node != n.node {
		n.node = node
		n.SetNode(node)
	}
	if now := n.Addresses(); !isSame(now.IPs, n.ips) {
		n.ips = now.IPs
		for _, f := range model.Families() {
			*n.list.At(f) = slices.DeleteFunc(now.Of(f), func(a netip.Addr) bool {
				return n.Serves != nil && !n.Serves(a) || n.Serves == nil && a.IsLoopback()
			})
		}
	}
	return *n.list.At(f)
}

// isSame reports whether two slices are one: the tracker makes a new one for each change.
func isSame(a, b []netip.Addr) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// followNodePorts follows the addresses that serve node ports.
func (s *Spec[F]) followNodePorts() error {
	if s.NodePorts.Tracker != nil {
		return nil
	}
	host, err := s.hostOr(s.Common.Host)
	if err != nil {
		return err
	}
	watched := &watchedHost{Host: host, notify: s.addressesChanged}
	t, err := nodeaddr.NewTracker(nodeaddr.Options{Host: watched, Choice: s.Common.NodePortAddresses})
	if err != nil {
		return fmt.Errorf("addresses of this host: %w", err)
	}
	watched.tracker, s.NodePorts.Tracker = t, t
	s.trackers = append(s.trackers, t)
	return nil
}

// addressesChanged makes the backend call Check, and asks for the Sync that decides anew who owns these addresses.
func (s *Spec[F]) addressesChanged() {
	s.notify()
	if f := s.onAddresses.Load(); f != nil {
		(*f)()
	}
}

// watchedHost makes the backend call Look when a change of the host's addresses changes what its tracker has. When a
// Node changes that, Look is not needed: the Sync that delivers the Node decides anew.
type watchedHost struct {
	nodeaddr.Host
	tracker *nodeaddr.Tracker
	notify  func()
}

func (h *watchedHost) Watch(ctx context.Context, changed func()) error {
	return h.Host.Watch(ctx, func() {
		before := h.tracker.Addresses()
		changed()
		if !h.tracker.Addresses().Equal(before) {
			h.notify()
		}
	})
}

// hostOr returns a host that is given, or this one.
func (s *Spec[F]) hostOr(host nodeaddr.Host) (nodeaddr.Host, error) {
	if host != nil {
		return host, nil
	}
	return s.ThisHost()
}

// ThisHost returns this host, in the network namespace of the calling thread, without the addresses of some interfaces.
func (s *Spec[F]) ThisHost(exclude ...string) (nodeaddr.Host, error) {
	host := &hostaddr.System{ExcludeInterfaces: exclude}
	if runtime.GOOS != "linux" {
		return host, nil
	}
	ns, err := os.Open("/proc/thread-self/ns/net") // whatever thread asks
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	s.Own(ns.Close)
	host.NetNS = int(ns.Fd())
	return host, nil
}

// UseHostOf makes the host of a dataplane in memory, which has no addresses of this host, the default. Any other
// dataplane changes nothing.
func (s *Spec[F]) UseHostOf(dataplane any) {
	if fake, ok := dataplane.(interface{ HostAddresses() []netip.Addr }); ok && s.Common.Host == nil {
		s.Common.Host = inMemory{fake.HostAddresses}
	}
}

// inMemory is the host of a dataplane in memory. Its addresses are read once.
type inMemory struct{ addresses func() []netip.Addr }

func (m inMemory) Addresses() (list []nodeaddr.HostAddress, _ error) {
	for _, a := range m.addresses() {
		list = append(list, nodeaddr.HostAddress{Addr: a})
	}
	return list, nil
}

func (m inMemory) Watch(ctx context.Context, changed func()) error {
	changed()
	<-ctx.Done()
	return nil
}
