package conformance

import (
	"context"
	"net/netip"
	"os"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Factory describes a backend to the suite. Only New is required. All functions, and the methods of the sink, are
// called on an operating-system thread that is in the network namespace of the node under test: the sockets that they
// open there, netlink ones too, and the programs that they start belong to it. Goroutines that they start are not in
// it: they have to open Env.NetNS or call Env.Do. None of them may call t.FailNow.
type Factory struct {
	// New starts the backend. What an earlier one left behind still exists. New is called after a cleanup, or as after
	// a restart of the process: then the backend has to adopt what it finds, and correct it at the first Sync. ctx ends
	// after the sink has been closed and dropped.
	//
	// The suite keeps to the contract of [sink.Sink]: if the sink is a [sink.NodeSetter] the first wave tells it the
	// node, if it is a [sink.Resyncer] it is asked to resync after an error. If it has a method Close() error, that is
	// called before the sink is dropped; like the end of the process it must leave the dataplane as it is.
	New func(ctx context.Context, env Env) (sink.Sink, error)
	// Cleanup removes everything that the backend has put into the node, as kube-proxy --cleanup does. No sink is alive
	// then.
	Cleanup func(ctx context.Context, env Env) error
	// Stop ends what the backend leaves running on purpose when its sink is closed, for example a forwarder in a
	// separate process. It is called before Cleanup, and once more at the end of the test; no sink is alive then.
	Stop func(ctx context.Context, env Env) error
	// Dump returns the backend's objects in the dataplane, for messages. If there is a Cleanup, Dump must return the
	// same before the first New and after the Cleanup. So leave out counters, and tables and chains that are empty.
	Dump func(ctx context.Context, env Env) (string, error)
	// Break removes rules behind the backend's back, so that traffic to some cluster IP no longer gets through.
	Break func(ctx context.Context, env Env) error
	// RepairsItself: the backend notices what Break does and repairs it at once, without a Sync. Otherwise the suite
	// asks for that with ForceResync and Sync.
	RepairsItself bool
	// Fail makes Sync fail, midway if that is possible, until repair is called.
	Fail func(ctx context.Context, env Env) (repair func() error, err error)
	// Lacks lists the features that the backend does not claim to have. The cases that need them are reported as
	// skipped.
	Lacks []Feature
}

// Env is the node that a backend serves.
type Env struct {
	// ID differs between tests and is the same in all calls of one test: a key for what outlives a sink.
	ID string
	// NetNS is the network namespace of the node, open until the test ends. Its name is a path that other processes can
	// open as well.
	NetNS *os.File
	// Families are the IP families to serve: all that the backend does not lack.
	Families []model.Family
	// NodeIPs are the node's addresses as Kubernetes knows them, one of each family. HostAddresses are all addresses of
	// the node's interfaces, NodeIPs included, but not the loopback addresses.
	NodeIPs, HostAddresses []netip.Addr
	// NodePorts is the option nodePortAddresses (S35): the addresses of the node that serve node ports.
	// NodePortAddresses are the resulting addresses, loopback excepted, for backends that do not work them out
	// themselves.
	NodePorts         nodeaddr.Choice
	NodePortAddresses []netip.Addr
	// LocalhostNodePorts asks for node ports on 127.0.0.1, if NodePorts has it (S36). It is never set for a backend that
	// lacks the feature.
	LocalhostNodePorts bool
	// LoopbackProxy asks for node ports on 127.0.0.1 and ::1 by a proxy on the node (S36a). It is never set for a
	// backend that lacks the feature, nor together with LocalhostNodePorts.
	LoopbackProxy bool
}

// Feature is something that not every backend supports. Its value is the name of the constant, which results print.
type Feature string

const (
	// IPv4 and IPv6 are the families. A backend may lack one of them.
	IPv4 Feature = "IPv4"
	IPv6 Feature = "IPv6"
	// SCTP is ports of that protocol. Every backend has to serve TCP and UDP.
	SCTP Feature = "SCTP"
	// SessionAffinity is S32, and AffinityTimeout is that affinity ends after its timeout.
	SessionAffinity Feature = "SessionAffinity"
	AffinityTimeout Feature = "AffinityTimeout"
	// SharedAffinity is that a client has one endpoint at all addresses of a port; without it, it has one at each.
	SharedAffinity Feature = "SharedAffinity"
	// SourceRanges are S26.
	SourceRanges Feature = "SourceRanges"
	// Refusal is that connections are refused where the route says so; without it, dropping them is enough (S25).
	Refusal Feature = "Refusal"
	// EarlyRefusal is that a connection is refused before it is accepted. Without it a later reset is enough and, where
	// there is no connection, silence.
	EarlyRefusal Feature = "EarlyRefusal"
	// SourcePreservation is that endpoints see the client's address where the route does not masquerade (S27, S28).
	// Without it they may see an address of the node.
	SourcePreservation Feature = "SourcePreservation"
	// InterfaceDetectors are the ways to detect local pods by a bridge or an interface prefix (S30).
	InterfaceDetectors Feature = "InterfaceDetectors"
	// NodePortAddresses is S35; without it, node ports are served on all addresses.
	NodePortAddresses Feature = "NodePortAddresses"
	// LocalhostNodePorts is S36.
	LocalhostNodePorts Feature = "LocalhostNodePorts"
	// LoopbackProxy is S36a.
	LoopbackProxy Feature = "LoopbackProxy"
	// UnknownPorts is that other ports of a cluster IP are refused, and UnallocatedAddresses that addresses of the
	// service CIDRs that no service has are dropped (S33).
	UnknownPorts         Feature = "UnknownPorts"
	UnallocatedAddresses Feature = "UnallocatedAddresses"
	// ExternalPorts is that ports of external IPs and VIPs that no service has are left alone; without it they may be
	// refused, because the backend makes these addresses the node's own.
	ExternalPorts Feature = "ExternalPorts"
	// WildcardListeners is that a process of the node that listens on all addresses gets no traffic for a service,
	// neither at its ports, with and without endpoints, nor at others. Without it such a process may answer instead of
	// a service, because the backend makes the service's addresses the node's own.
	WildcardListeners Feature = "WildcardListeners"
	// HostAddressChanges is that node ports are served on addresses that are added to the node, and no longer on those
	// that are removed (S35). It may take a resync.
	HostAddressChanges Feature = "HostAddressChanges"
	// LastingOwners is that the owner keeps an address that several services list (S59); among newcomers the oldest
	// gets it, then a VIP before an external IP, then the first by name. Without it any of them may have it, at any
	// time.
	LastingOwners Feature = "LastingOwners"
	// StaleFlows is that UDP flows do not continue to deleted endpoints (S40, S41). Package conntrack provides that, as
	// a sink around another one.
	StaleFlows Feature = "StaleFlows"
	// PathErrors is that ICMP errors from behind a service reach the sender: the MTU is too small, or no process
	// listens. A proxy that terminates connections and opens others cannot pass them on.
	PathErrors Feature = "PathErrors"
	// NodeDatagrams is that processes of the node itself can send datagrams to services that are larger than the MTU.
	NodeDatagrams Feature = "NodeDatagrams"
	// DrainedConnections is that established connections stay with an endpoint that gets no new ones.
	DrainedConnections Feature = "DrainedConnections"
	// StandingOverRestart is that established connections survive a restart of the backend, and NewOverRestart that new
	// ones are served throughout it, also while no backend runs (S44).
	StandingOverRestart Feature = "StandingOverRestart"
	NewOverRestart      Feature = "NewOverRestart"
)

// What only a backend in a simulation may lack, see Simulate.
const (
	// SourceRoutes is that pods of the node, and the node itself, reach all endpoints at external addresses of a
	// service with policy Local (S27). Without it they are treated like traffic from outside.
	SourceRoutes Feature = "SourceRoutes"
	// Hairpins is that a pod's traffic to itself is masqueraded, whatever the route says (S29).
	Hairpins Feature = "Hairpins"
	// EmptySets is S25. Without it flows to addresses without endpoints may be left alone.
	EmptySets Feature = "EmptySets"
	// TargetPorts is that the endpoints of a service port may have different ports. Without it only those with the most
	// frequent port get traffic; of several, the lowest.
	TargetPorts Feature = "TargetPorts"
	// HostEndpoints is that processes of the node itself are endpoints. Without it they get no traffic.
	HostEndpoints Feature = "HostEndpoints"
)

// lacks reports whether the backend lacks a feature.
func (f Factory) lacks(feature Feature) bool { return slices.Contains(f.Lacks, feature) }

// families returns the families that the backend serves.
func (f Factory) families() []model.Family {
	var families []model.Family
	if !f.lacks(IPv4) {
		families = append(families, model.IPv4)
	}
	if !f.lacks(IPv6) {
		families = append(families, model.IPv6)
	}
	return families
}
