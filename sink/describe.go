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
	// ReportProblems makes each Sync call report, from its goroutine, for every service of which a part ceases to be
	// served or all is served again, or of which other parts are not served than before. any: something is not. Call it
	// once, before the first Sync.
	ReportProblems(report func(name model.ServiceName, any bool))
	// Problems returns all that is not served of a service as of the last Sync, in words; nil if everything is. It may be
	// called from any goroutine, and may wait for a Sync to end.
	Problems(name model.ServiceName) []string
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
