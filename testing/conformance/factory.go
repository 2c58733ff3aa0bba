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
	// Waives lists single cases that the backend does not claim to pass, by name. They are reported as skipped, and
	// random states leave out what they are about. A name that no case has fails the test.
	Waives []string
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
	// LocalhostNodePorts asks for node ports on 127.0.0.1, if NodePorts has it (S36), and LoopbackProxy for node ports
	// on 127.0.0.1 and ::1 by a proxy on the node (S36a). They are never set together, nor for a backend that lacks
	// LoopbackNodePorts or waives the cases about them.
	LocalhostNodePorts, LoopbackProxy bool
}

// Feature is something that not every backend supports. Its value is the name of the constant, which results print.
// What is smaller than a feature is a case that Factory.Waives can name.
type Feature string

// What the backend carries. It may lack one of the IP families, and SCTP; every backend has to serve TCP and UDP. What
// it lacks is not sent, and the cases that are about nothing else are skipped.
const (
	IPv4 Feature = "IPv4"
	IPv6 Feature = "IPv6"
	SCTP Feature = "SCTP"
)

// What a Service asks for: session affinity (S32), and load-balancer source ranges (S26). Without one of them no
// service of the suite asks for it.
const (
	SessionAffinity Feature = "SessionAffinity"
	SourceRanges    Feature = "SourceRanges"
)

// Where node ports are served. Without NodePortAddresses that is all addresses of the node, and the cases that choose
// some are skipped (S35). Without LoopbackNodePorts it is no loopback address, neither by the dataplane (S36) nor by a
// proxy beside it (S36a), and the cases about these are skipped. Backends that do it in one way waive the other's.
const (
	NodePortAddresses Feature = "NodePortAddresses"
	LoopbackNodePorts Feature = "LoopbackNodePorts"
)

// What is seen of the backend. Without Refusal, where the route says that a connection is refused (S25) it may be
// dropped, or reset after it was accepted. Without SourcePreservation endpoints may see an address of the node where
// the route does not masquerade (S27, S28). No case is skipped for that.
const (
	Refusal            Feature = "Refusal"
	SourcePreservation Feature = "SourcePreservation"
)

// What is next to the traffic of services. Without UnusedAddresses nothing is expected of the other ports of a cluster
// IP, which are to be refused, and of addresses of the service CIDRs that no service has, which are to be dropped
// (S33). Without StaleFlows UDP flows may go on to deleted endpoints (S40, S41); package conntrack cuts them, as a sink
// around another one. The cases about these are skipped.
const (
	UnusedAddresses Feature = "UnusedAddresses"
	StaleFlows      Feature = "StaleFlows"
)

// Routes is what a load balancer without rules cannot do. Only a backend in a simulation may lack it, see Simulate.
// Without it pods of the node, and the node itself, are treated like traffic from outside at external addresses of a
// service with policy Local (S27); a pod's traffic to itself need not be masqueraded (S29); flows to addresses without
// endpoints may be left alone (S25); and of the endpoints of a service port only those with the most frequent port, of
// several the lowest, get traffic, and none that is a process of the node itself.
const Routes Feature = "Routes"

// lacks reports whether the backend lacks a feature.
func (f Factory) lacks(feature Feature) bool { return slices.Contains(f.Lacks, feature) }

// waives reports whether the backend waives a case.
func (f Factory) waives(name string) bool { return slices.Contains(f.Waives, name) }

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
