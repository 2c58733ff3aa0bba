package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Proxy describes a service proxy that is a program of its own to [Judge].
type Proxy struct {
	// Open makes a node's API server, and prepares the program. It is called on an operating-system thread that is in
	// the network namespace of the node, once for each network that [Judge] makes, concurrently.
	Open func(ctx context.Context, env Env, c Configuration) (Host, error)
	// Configures: the program is started as the configuration says. Otherwise it is always started in one way, which is
	// what Assume says or, if that is nil, what it is seen to do at first.
	Configures bool
	Assume     *Configuration
	// Cleans and Breaks: the host's Cleanup and Break do something.
	Cleans, Breaks bool
	// Lacks lists the features that the program does not claim to have, see [Factory].
	Lacks []Feature
}

// Host is one node with an API server, on which the program is started and stopped. All methods but Ended and Usage are
// called one at a time, on a thread in the network namespace of the node; Close elsewhere.
//
// A host may also have a method Disturbed() error, which returns why what has happened since the last call of it says
// nothing about the program, nil if it does. A case that fails then is not run.
type Host interface {
	// Put writes objects to the API server in this order, and then deletes others. They stay when the program is
	// stopped. With a [RefusedError] the case is not run.
	Put(ctx context.Context, set, deleted []metav1.Object) error
	// Start starts the program. It does not wait until that serves.
	Start(ctx context.Context) error
	// Ended is closed when the program that was started last ends by itself; Failure then says how, and what it printed.
	Ended() <-chan struct{}
	Failure() error
	// Stop ends the program, if it runs, and waits for that. What it has applied stays.
	Stop(ctx context.Context) error
	// Cleanup removes what the program has applied. It does not run then. Break removes some of it while it runs.
	Cleanup(ctx context.Context) error
	Break(ctx context.Context) error
	// Dump returns the rules on the node, for messages.
	Dump(ctx context.Context) (string, error)
	// Usage returns the processor time and the most memory, in bytes, that the program has used since it was started,
	// zero if that is not known.
	Usage() (processor time.Duration, memory int64)
	// Requests says in words what the program has asked the API server for.
	Requests() string
	// Close stops the program, and the API server.
	Close()
}

// RefusedError says that an API server does not accept an object of the suite.
type RefusedError struct {
	// Object names it, with its kind, and Reason is the server's answer.
	Object, Reason string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the API server refuses %s: %s", e.Object, e.Reason)
}

// What a node is called, and the interface that its pods are behind.
const (
	NodeName   = theNode
	BridgeName = network.BridgeName
)

// PodCIDRs are the ranges of the node's pods, one of each family.
func (e Env) PodCIDRs() []netip.Prefix {
	return e.ranges(func(f model.Family) netip.Prefix { return network.PlanOf(f).LocalPods })
}

// ClusterCIDRs are the ranges of all pods, one of each family.
func (e Env) ClusterCIDRs() []netip.Prefix {
	return e.ranges(func(f model.Family) netip.Prefix { return network.PlanOf(f).AllPods })
}

// ServiceCIDRs are the ranges of cluster IPs, one of each family.
func (e Env) ServiceCIDRs() []netip.Prefix { return e.ranges(clusterIPs) }

func (e Env) ranges(of func(model.Family) netip.Prefix) (list []netip.Prefix) {
	for _, f := range e.Families {
		list = append(list, of(f))
	}
	return list
}

// LocalMode is how a program distinguishes local pods from other sources (S30), by kube-proxy's names.
type LocalMode string

// The ways, and none of them.
const (
	NoLocalMode         LocalMode = ""
	NodeCIDR            LocalMode = "NodeCIDR"
	ClusterCIDR         LocalMode = "ClusterCIDR"
	BridgeInterface     LocalMode = "BridgeInterface"
	InterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// Configuration is how a program has to be configured.
type Configuration struct {
	// Local is how to detect local pods, by the value that belongs to it.
	Local                   LocalMode
	ClusterCIDRs            []netip.Prefix
	Bridge, InterfacePrefix string
	MasqueradeAll           bool
	// NodePorts chooses the addresses that serve node ports (S35). LocalhostNodePorts and LoopbackProxy are those of
	// [Env].
	NodePorts                         nodeaddr.Choice
	LocalhostNodePorts, LoopbackProxy bool
}

// JudgeOptions are the options of [Judge]. The zero value runs all cases.
type JudgeOptions struct {
	// Run selects cases by name, nil all of them. CoreOnly leaves out what is not of the profile core.
	Run      *regexp.Regexp
	CoreOnly bool
	// Lanes is how many networks, each with a program of its own, the cases share. Default 4.
	Lanes int
	// Seed determines the source ports of clients.
	Seed uint64
	// StartTimeout is how long the program may take to serve whenever it is started, default 60 s.
	StartTimeout time.Duration
	// Sizes are those of clusters at which the program's speed is measured after the cases, one after the other.
	Sizes []Size
	// Progress is called with each result, one at a time, and how many cases there are.
	Progress func(r report.Result, of int)
	// Say is called with what else happens, for a person who waits.
	Say func(text string)
}

// CompareOptions are the options of [Compare].
type CompareOptions struct {
	// Names are what the two programs are called in the report. They differ.
	Names [2]string
	// Clusters is how many random clusters are tried, default 60, and Time how long: no cluster is begun, and nothing is
	// reduced, after that. Default 5 minutes.
	Clusters int
	Time     time.Duration
	// Seed determines the clusters and the flows, for programs that lack the same. 0 is a random one.
	Seed uint64
	// StartTimeout and Say are those of [JudgeOptions].
	StartTimeout time.Duration
	Say          func(text string)
}

const (
	defaultLanes        = 4
	defaultStartTimeout = time.Minute
	defaultClusters     = 60
	defaultTime         = 5 * time.Minute
)
