// Package program describes a service proxy that is a program to the judge: the program itself ([Proxy]), the node that
// it serves, its configuration, and the [Host] that starts and stops it and writes the objects that it reads. The host
// of cmd/judge runs shell commands, with an API server in its process or a real one.
//
// Only package judge and those who call it need this package.
package program

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Proxy describes a service proxy that is a program.
type Proxy struct {
	// Open creates a node's API server and prepares the program. It is called concurrently, once for each network that the
	// judge creates, on an operating-system thread in the node's network namespace.
	Open func(ctx context.Context, n Node, c Configuration) (Host, error)
	// Configures says that the program can be started with any Configuration. Otherwise its configuration is always Assume
	// or, if that is nil, what the judge observes at first.
	Configures bool
	Assume     *Configuration
	// Cleans and Breaks say that the host implements Cleanup and Break, and Outages that it has the methods Away and Back.
	Cleans, Breaks, Outages bool
	// Lacks lists features that the program does not have, by the names of conformance.Feature.
	Lacks []string
}

// Host is a node with an API server, on which the program is started and stopped. Except for Ended and Usage, methods
// are called one at a time, on a thread in the node's network namespace; Close is called elsewhere.
//
// A host may implement optional methods:
//
//   - Away(ctx) error makes the API server unreachable: connections end, and new ones are refused. Put still works.
//     Back(ctx, r Return) error ends that, and comes after each Away, unless the case has failed: Stop and Close must
//     work then, too, and while the server is [Silent].
//   - Disturbed() error returns why events since its last call invalidate the results of the program, or nil. A
//     case that fails then counts as not run.
//   - List(ctx) (command string, size int64, err error) lists the node's rules with the usual command, and
//     returns the number of bytes printed. It is called on a thread in the node's network namespace, concurrently
//     with other methods. The first call may take time to choose the command. When ctx ends, List kills the command
//     and returns an error. The judge measures its duration.
type Host interface {
	// Put writes objects to the API server, in order, and then deletes others. Objects remain when the program is stopped.
	// After a [RefusedError] the case counts as not run.
	Put(ctx context.Context, set, deleted []metav1.Object) error
	// Start starts the program, without waiting until it serves.
	Start(ctx context.Context) error
	// Ended is closed when the last started program exits by itself. Failure then returns the reason and its output.
	Ended() <-chan struct{}
	Failure() error
	// Stop stops the program if it runs, and waits until it has exited. The dataplane stays as it is.
	Stop(ctx context.Context) error
	// Cleanup removes the program's rules while it does not run. Break removes some of them while it runs.
	Cleanup(ctx context.Context) error
	Break(ctx context.Context) error
	// Dump returns the node's rules, for messages.
	Dump(ctx context.Context) (string, error)
	// Usage returns the program's CPU time and peak memory in bytes since its last start, or zeros if unknown. The time
	// includes all processes that the program has started, and what Cleanup and Break have run since then, so that on a
	// busy machine their load can be distinguished from that of others. It stays when the program is stopped.
	Usage() (processor time.Duration, memory int64)
	// Requests describes the program's requests to the API server, for messages.
	Requests() string
	// Close stops the program and the API server.
	Close()
}

// Return says how an API server comes back after it was away.
type Return int

const (
	// SameHistory: watches continue where they ended.
	SameHistory Return = iota
	// HistoryGone: earlier resource versions have expired, so watches get 410 Gone.
	HistoryGone
	// LowerVersions: they have expired, and all objects have lower ones. The server says so, unlike a real one whose
	// storage was restored from a backup, which is silent.
	LowerVersions
	// Silent: the server accepts connections and sends nothing, until Away ends them.
	Silent
)

// RefusedError is returned when an API server rejects an object of the suite.
type RefusedError struct {
	// Object is the kind and name of the object, Reason the server's answer.
	Object, Reason string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the API server refuses %s: %s", e.Object, e.Reason)
}

// The names of the node, and of the bridge that its pods are connected to.
const (
	NodeName   = network.TheNode
	BridgeName = network.BridgeName
)

// Node is the node that a program serves.
type Node struct {
	// Families are the IP families to serve: all except those that the program lacks.
	Families []model.Family
	// NodeIPs are the node's addresses in Kubernetes, one per family. HostAddresses are all addresses of its interfaces,
	// including NodeIPs but not the loopback addresses.
	NodeIPs, HostAddresses []netip.Addr
}

// PodCIDRs are the node's pod ranges, one per family.
func (n Node) PodCIDRs() []netip.Prefix {
	return n.ranges(func(f model.Family) netip.Prefix { return network.PlanOf(f).LocalPods })
}

// ClusterCIDRs are the cluster's pod ranges, one per family.
func (n Node) ClusterCIDRs() []netip.Prefix {
	return n.ranges(func(f model.Family) netip.Prefix { return network.PlanOf(f).AllPods })
}

// ServiceCIDRs are the ranges of cluster IPs, one per family.
func (n Node) ServiceCIDRs() []netip.Prefix { return n.ranges(network.ClusterIPs) }

func (n Node) ranges(of func(model.Family) netip.Prefix) (list []netip.Prefix) {
	for _, f := range n.Families {
		list = append(list, of(f))
	}
	return list
}

// LocalMode selects how a program detects local pods (S30). The names are kube-proxy's.
type LocalMode string

// The modes. NoLocalMode detects none.
const (
	NoLocalMode         LocalMode = ""
	NodeCIDR            LocalMode = "NodeCIDR"
	ClusterCIDR         LocalMode = "ClusterCIDR"
	BridgeInterface     LocalMode = "BridgeInterface"
	InterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// Configuration is the configuration with which to start a program.
type Configuration struct {
	// Local selects the detection of local pods; the modes use ClusterCIDRs, Bridge or InterfacePrefix.
	Local                   LocalMode
	ClusterCIDRs            []netip.Prefix
	Bridge, InterfacePrefix string
	MasqueradeAll           bool
	// NodePorts selects the addresses that serve node ports (S35). LocalhostNodePorts asks for node ports on 127.0.0.1, if
	// NodePorts includes it (S36); LoopbackProxy asks for a proxy on the node that serves them on 127.0.0.1 and ::1
	// (S36a).
	NodePorts                         nodeaddr.Choice
	LocalhostNodePorts, LoopbackProxy bool
}
