package sink

import (
	"context"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Describer is implemented by backends that show people what they made of a service, as package page does. Unlike the
// other abilities it is not for callers that feed the sink, and middleware does not pass it on.
type Describer interface {
	// DescribeService returns the rules for a service, as text in the language of the dataplane; "" if there are none.
	// It may be called from any goroutine, at any time.
	DescribeService(ctx context.Context, name model.ServiceName) (string, error)
}

// Repairer is implemented by backends that repair what others change in their dataplane. As with [Describer],
// middleware does not pass it on.
type Repairer interface {
	// Repairs returns the last repairs, the latest first, and how many there have been. It may be called from any
	// goroutine, at any time.
	Repairs() (last []Repair, total int)
}

// Repair is something that others had changed and the backend corrected.
type Repair struct {
	At     time.Time
	Family model.Family
	// Err is why an attempt failed; nil if the repair was done. Attempts that failed do not count in the total.
	Err error
}
