package conformance

import (
	"context"
	"net/netip"
	"os"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Factory describes a backend to the suite. Only New is required. All functions, and the methods of the sink, are
// called on an operating-system thread in the network namespace of the node under test: sockets opened and programs
// started there belong to that namespace. Goroutines do not inherit it: they have to open Env.NetNS or call Env.Do.
// None of the functions may call t.FailNow.
type Factory struct {
	// New starts the backend, after a Cleanup or as after a restart of the process. After a restart the rules of the
	// earlier backend still exist: the new one has to adopt them, and correct them at the first Sync. ctx ends after the
	// sink has been closed and dropped.
	//
	// The suite keeps to the contract of [sink.Sink]: the first wave sets the node if the sink is a [sink.NodeSetter], and
	// an error is followed by a resync if it is a [sink.Resyncer]. If the sink has a method Close() error, it is called
	// before the sink is dropped. Like the end of the process, Close must leave the dataplane as it is.
	New func(ctx context.Context, env Env) (sink.Sink, error)
	// Cleanup removes everything that the backend put on the node, as kube-proxy --cleanup does. There is no sink at that
	// time.
	Cleanup func(ctx context.Context, env Env) error
	// Stop stops what the backend deliberately leaves running when its sink is closed, such as a forwarder in a separate
	// process. It is called before Cleanup and at the end of the test, when there is no sink.
	Stop func(ctx context.Context, env Env) error
	// Dump returns the backend's objects in the dataplane, for messages. If Cleanup is set, Dump must return the same
	// before the first New and after Cleanup: leave out counters, and empty tables and chains.
	Dump func(ctx context.Context, env Env) (string, error)
	// Break removes rules without the backend's knowledge, so that traffic to some cluster IP fails.
	Break func(ctx context.Context, env Env) error
	// RepairsItself: the backend notices Break's damage and repairs it without a Sync. Otherwise the suite calls
	// ForceResync and Sync.
	RepairsItself bool
	// Fail makes Sync fail, if possible midway, until repair is called.
	Fail func(ctx context.Context, env Env) (repair func() error, err error)
	// Lacks lists features that the backend does not have. Cases that need them are reported as skipped.
	Lacks []Feature
	// Waives lists, by name, single cases that the backend need not pass. They are reported as skipped, and random states
	// avoid what they cover. An unknown name fails the test.
	Waives []string
}

// Env is the node that a backend serves.
type Env struct {
	// ID is the same in all calls of one test and differs between tests: a key for state that outlives a sink.
	ID string
	// NetNS is the node's network namespace, open until the test ends. Its name is a path that other processes can open
	// too.
	NetNS *os.File
	// Families are the IP families to serve: all that the backend does not lack.
	Families []model.Family
	// NodeIPs are the node's addresses in Kubernetes, one per family. HostAddresses are all addresses of the node's
	// interfaces, including NodeIPs but not the loopback addresses.
	NodeIPs, HostAddresses []netip.Addr
	// OtherNodeIPs are the addresses of the cluster's other nodes, sorted. Services may list one.
	OtherNodeIPs []netip.Addr
	// NodePorts is the option nodePortAddresses (S35). NodePortAddresses are the resulting addresses without loopback, for
	// backends that do not work them out themselves.
	NodePorts         nodeaddr.Choice
	NodePortAddresses []netip.Addr
	// LocalhostNodePorts asks for node ports on 127.0.0.1, if NodePorts includes it (S36); LoopbackProxy asks for node
	// ports on 127.0.0.1 and ::1 through a proxy on the node (S36a). At most one of them is set, and neither for a backend
	// that lacks LoopbackNodePorts or waives the cases about them.
	LocalhostNodePorts, LoopbackProxy bool
}

// Feature is something that a backend may lack. Its value is the constant's name, which results print. For less than a
// feature, list single cases in Factory.Waives.
type Feature string

// Families and protocols. A backend may lack one IP family, and SCTP; every backend has to serve TCP and UDP. The suite
// sends no such traffic, and skips cases that cover nothing else.
const (
	IPv4 Feature = "IPv4"
	IPv6 Feature = "IPv6"
	SCTP Feature = "SCTP"
)

// Fields of a Service: session affinity (S32) and load-balancer source ranges (S26). If one is lacking, no service of
// the suite sets it.
const (
	SessionAffinity Feature = "SessionAffinity"
	SourceRanges    Feature = "SourceRanges"
)

// ExternalIPs is the field externalIPs of a Service (S6). A proxy that lacks it ignores the field, as kube-proxy does
// without its gate AllowServiceExternalIPs: Services keep their external IPs, and nothing may serve them. No case is
// skipped.
const ExternalIPs Feature = "ExternalIPs"

// Where node ports are served. Without NodePortAddresses the backend serves them on all addresses of the node, and
// cases that choose some are skipped (S35). Without LoopbackNodePorts it serves them on no loopback address, neither in
// the dataplane (S36) nor through a proxy (S36a). A backend that supports one of the two waives the cases of the other.
const (
	NodePortAddresses Feature = "NodePortAddresses"
	LoopbackNodePorts Feature = "LoopbackNodePorts"
)

// Visible behaviour. Without Refusal a connection that should be refused (S25) may be dropped, or accepted and then
// reset. Without SourcePreservation endpoints may see an address of the node as the source of unmasqueraded traffic
// (S27, S28). No case is skipped.
const (
	Refusal            Feature = "Refusal"
	SourcePreservation Feature = "SourcePreservation"
)

// Effects beyond a service's own ports. Without UnusedAddresses nothing is expected of the other ports of a cluster IP
// (otherwise refused), nor of unused addresses in the service CIDRs (otherwise dropped) (S33). Without StaleFlows UDP
// flows may continue to deleted endpoints (S40, S41); package conntrack wraps a sink to cut them. Cases about these are
// skipped.
const (
	UnusedAddresses Feature = "UnusedAddresses"
	StaleFlows      Feature = "StaleFlows"
)

// Routes is what a load balancer without rules cannot do. Only a backend in a simulation may lack it, see Simulate.
// Without it, external addresses of a service with policy Local treat pods of the node and the node itself like outside
// traffic (S27); a pod's traffic to itself need not be masqueraded (S29); flows to addresses without endpoints may be
// left alone (S25). Of a service port's endpoints only those with the most frequent target port (the lowest on a tie)
// get traffic, and none that is a process of the node itself.
const Routes Feature = "Routes"
