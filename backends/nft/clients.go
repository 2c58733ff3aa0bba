package nft

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The clients of service ports with session affinity (S32) are in sets with room for 65,535 each. Their number is
// limited: for each rule that uses a set the kernel looks for its name among those of all sets, and 8,000 of them took
// 5 s to make.
//
//   - The first service ports of a namespace have a set each.
//   - The others of the namespace share one. In its keys a number stands for the port.
//   - Above a number of namespaces, the others of further namespaces share sets, by a hash of the namespace.
//
// A service port stays in its set. After a restart it finds it again: ports and namespaces whose set exists come before
// all others.
const (
	maxPortSetsOfNamespace = 16
	maxPortSets            = 512
	maxNamespaceSets       = 512
	numCommonSets          = 64
)

// Prefixes of the names of sets of clients: of one service port, and of several.
const (
	clientsPrefix       = "affinity-"
	sharedClientsPrefix = "clients-"
)

// clientsSet returns the set of clients with this name. Its keys have a number that stands for an endpoint, and if
// several service ports use it, another one that stands for the port.
func clientsSet(name, comment string) *dp.Set {
	s := &dp.Set{Name: name, Comment: comment, Key: []dp.Field{dp.SourceAddr, dp.Constant}, Dynamic: true}
	if strings.HasPrefix(name, sharedClientsPrefix) {
		s.Key = []dp.Field{dp.SourceAddr, dp.Scope, dp.Constant}
	}
	return s
}

// isClients reports whether a set of this name is for clients.
func isClients(name string) bool {
	return strings.HasPrefix(name, clientsPrefix) || strings.HasPrefix(name, sharedClientsPrefix)
}

// clientSets are the sets of clients of a table.
type clientSets struct {
	users      frontend.RefCounts[string] // service ports, by the names of their sets
	namespaces map[string]*namespaceClients
	ports      int // sets of one service port
	shared     int // sets of one namespace
}

// namespaceClients are the sets of clients of a namespace.
type namespaceClients struct {
	ports int // sets of one service port
	// shared is the set of the further service ports, nil if there are none; sharing is their number.
	shared  *dp.Set
	sharing int
	// found: the set that they share existed before all ports were planned, and is kept for them.
	found bool
	// kept has the service ports whose own sets existed before that.
	kept map[model.PortName]bool
}

func (c *clientSets) namespace(name string) *namespaceClients {
	ns := c.namespaces[name]
	if ns == nil {
		ns = &namespaceClients{}
		c.namespaces[name] = ns
	}
	return ns
}

// hasRoom reports whether a namespace may have one more set of a single service port.
func (c *clientSets) hasRoom(ns *namespaceClients) bool {
	return ns.ports < maxPortSetsOfNamespace && c.ports < maxPortSets
}

// keep plans that a service port uses again what it used before a restart, before new ones get sets.
func (c *clientSets) keep(port model.PortName, exists map[string]bool) {
	ns := c.namespace(port.Service.Namespace)
	if exists[portClients(port)] && c.hasRoom(ns) {
		if ns.kept == nil {
			ns.kept = map[model.PortName]bool{}
		}
		ns.kept[port] = true
		ns.ports++
		c.ports++
	}
	if !ns.found && exists[namespaceSet(port.Service.Namespace)] && c.shared < maxNamespaceSets {
		ns.found = true
		c.shared++
	}
}

// kept ends what keep began, once all service ports have their sets.
func (c *clientSets) kept() {
	for _, ns := range c.namespaces {
		if ns.found && ns.shared == nil {
			c.shared--
		}
		ns.found = false
	}
}

// join returns the set of a service port that has none.
func (c *clientSets) join(port model.PortName) *dp.Set {
	ns := c.namespace(port.Service.Namespace)
	var s *dp.Set
	switch {
	case ns.kept[port]:
		delete(ns.kept, port)
		s = clientsSet(portClients(port), dp.Comment(port.String()))
	case ns.shared == nil && !ns.found && c.hasRoom(ns):
		ns.ports++
		c.ports++
		s = clientsSet(portClients(port), dp.Comment(port.String()))
	default:
		s = c.sharedBy(port.Service.Namespace, ns)
		ns.sharing++
	}
	c.users.Add(s.Name)
	return s
}

// sharedBy returns the set that service ports of a namespace share.
func (c *clientSets) sharedBy(name string, ns *namespaceClients) *dp.Set {
	switch {
	case ns.shared != nil:
	case ns.found || c.shared < maxNamespaceSets:
		if !ns.found {
			c.shared++
		}
		ns.shared = clientsSet(namespaceSet(name), dp.Comment("namespace "+name))
	default:
		sum := sha256.Sum256([]byte(name))
		ns.shared = clientsSet(fmt.Sprintf("%scommon-%d", sharedClientsPrefix, sum[0]%numCommonSets), "many namespaces")
	}
	return ns.shared
}

// leave takes a service port out of its set, and reports whether no port uses the set any more.
func (c *clientSets) leave(port model.PortName, s *dp.Set) (unused bool) {
	unused = c.users.Remove(s.Name)
	name := port.Service.Namespace
	ns := c.namespaces[name]
	if s != ns.shared {
		ns.ports--
		c.ports--
	} else if ns.sharing--; ns.sharing == 0 {
		ns.shared = nil
		if s.Name == namespaceSet(name) {
			c.shared--
		}
	}
	if ns.ports == 0 && ns.sharing == 0 {
		delete(c.namespaces, name)
	}
	return unused
}

// portClients returns the name of the set of a service port. It is little more than a hash: the kernel takes longer to
// compare longer names.
func portClients(port model.PortName) string {
	sum, _ := identify(port)
	return clientsPrefix + nameOf(sum)
}

// namespaceSet returns the name of the set that service ports of a namespace share.
func namespaceSet(namespace string) string {
	return sharedClientsPrefix + nameOf(sha256.Sum256([]byte(namespace)))
}

// nameOf returns a hash as a part of a name.
func nameOf(sum [sha256.Size]byte) string {
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}
