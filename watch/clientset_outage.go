package watch

import (
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"
)

// Pauses between two lines about an API server that does not answer: while it stays so, and if it has answered in
// between.
const (
	outagePause = 5 * time.Minute
	outageAgain = 30 * time.Second
)

// outage logs that an API server cannot be reached, where client-go tries again without a word. All kinds of objects of
// a run share it.
type outage struct {
	mu       sync.Mutex
	told     time.Time // of the last line
	answered bool      // since then
}

// note takes note of how a watch began. err has the URL.
func (o *outage) note(logger klog.Logger, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.answered = true
		return
	}
	if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsInternalError(err) {
		return // the reflector ends, and its error is logged
	}
	pause := outagePause
	if o.answered {
		pause = outageAgain
	}
	if now := time.Now(); o.told.IsZero() || now.Sub(o.told) >= pause {
		o.told, o.answered = now, false
		logger.Error(err, "The API server cannot be reached, or refuses; trying again")
	}
}
