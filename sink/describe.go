package sink

import (
	"context"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Describer is implemented by backends that can show people their rules for a service, for example on package page's
// web page. Unlike the other optional interfaces it is not for callers that feed the sink, and middleware does not pass
// it on.
type Describer interface {
	// DescribeService returns the rules for a service, as text in the language of the dataplane; "" if there are none.
	// It may be called from any goroutine, at any time.
	DescribeService(ctx context.Context, name model.ServiceName) (string, error)
}

// ProblemReporter is implemented by backends that may leave out parts of a service because of the services themselves,
// for example an address that another service owns (S59), and not because of the dataplane, as with a [PortError]. As
// with [Describer], middleware does not pass it on.
type ProblemReporter interface {
	// ReportProblems makes each Sync call report, from its goroutine, for every service for which the set of parts that
	// are not served has changed. any: that set is not empty. Call it once, before the first Sync.
	ReportProblems(report func(name model.ServiceName, any bool))
	// Problems describes every part of a service that is not served as of the last Sync; nil if everything is served. It
	// may be called from any goroutine, and may wait for a Sync to end.
	Problems(name model.ServiceName) []string
}

// ContestReporter is implemented by backends that know who owns an address that several service ports list (S59). As
// with [Describer], middleware does not pass it on.
type ContestReporter interface {
	// ReportContests makes each Sync call report, from its goroutine and before it returns, for every contest that began,
	// got another owner or ended in that Sync, also in families that it then fails to apply. report must not call the
	// backend. Call ReportContests once, before the first Sync.
	ReportContests(report func(Contest))
}

// Contest is an address and port, or a node port, that several service ports list. Only its owner gets the traffic.
type Contest struct {
	// Family is the IP family: a node port is contested in each of them.
	Family model.Family
	// Protocol is that of all the service ports.
	Protocol model.Protocol
	// Destination is the contested address and port. A node port has no address.
	Destination netip.AddrPort
	// Owner is the service port that has it. The zero value means that the contest is over: no more than one service
	// port lists it.
	Owner model.PortName
}

// ExternalReporter is implemented by backends that know which service ports have lost all of their external addresses
// to others (S59): the node port, and all VIPs and external IPs. Outside clients then reach nothing of the port. As
// with [Describer], middleware does not pass it on.
type ExternalReporter interface {
	// ReportExternal makes each Sync call report, from its goroutine and before it returns, for every service port that
	// has lost the last of these addresses in that Sync (owns is false), and for every one of which that is no longer so
	// (owns is true), also in families that it then fails to apply. report must not call the backend. Call ReportExternal
	// once, before the first Sync.
	ReportExternal(report func(port model.PortName, f model.Family, owns bool))
}

// Repairer is implemented by backends that repair what others change in their dataplane. As with [Describer],
// middleware does not pass it on.
type Repairer interface {
	// Repairs returns the last repairs, the latest first, and the total number of repairs. It may be called from any
	// goroutine, at any time.
	Repairs() (last []Repair, total int)
}

// Repair is a change by others that the backend corrected, or tried to correct.
type Repair struct {
	// At is when the attempt ended.
	At time.Time
	// Family is the family whose rules were repaired; 0 if the backend does not know it.
	Family model.Family
	// Err is the reason why the attempt failed; nil if it succeeded. Failed attempts do not count in the total.
	Err error
}
