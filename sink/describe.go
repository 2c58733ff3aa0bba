package sink

import (
	"context"
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

// ProblemReporter is implemented by backends that may leave parts of a service out for reasons that lie in the services
// themselves, such as an address that another service owns (S59), and not in the dataplane, as those of a [PortError]
// do. As with [Describer], middleware does not pass it on.
type ProblemReporter interface {
	// ReportProblems makes each Sync call report, from its goroutine, with every service whose problems have changed,
	// and all that it does not serve of it now, in words; nil if it serves everything. Call it once, before the first
	// Sync.
	ReportProblems(report func(name model.ServiceName, problems []string))
}

// TrafficCounter is implemented by backends whose dataplane may count the traffic of services. As with [Describer],
// middleware does not pass it on.
type TrafficCounter interface {
	// CountTraffic returns what the dataplane has counted for each service; nil if it does not count. It may be called
	// from any goroutine, at any time, and may take as long as reading the dataplane does.
	CountTraffic(ctx context.Context) (map[model.ServiceName]Traffic, error)
}

// Traffic is what a dataplane has counted for a service. Any number may begin at 0 again at any time, for example when
// a rule is replaced.
type Traffic struct {
	// Connections are new connections, and flows of protocols without connections, also those that were refused.
	Connections uint64
	// Bytes are those of the packets in both directions, with their IP headers; 0 if only connections are counted.
	Bytes uint64
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
	// Family is the one whose rules were repaired; 0 if the backend cannot tell.
	Family model.Family
	// Err is the reason why the attempt failed; nil if it succeeded. Failed attempts do not count in the total.
	Err error
}
