package watch

import (
	"context"
	"errors"
	"io"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"
)

// Pauses between two log lines about an API server that does not answer: if it has not answered since, and if it has.
const (
	outagePause = 5 * time.Minute
	outageAgain = 30 * time.Second
)

// outage logs that an API server cannot be reached: client-go would try again without logging it, or each kind of
// object would log it separately. All kinds of objects of a run share it.
type outage struct {
	mu       sync.Mutex
	logged   time.Time // of the last line
	answered bool      // since then
}

// isOutage reports whether an error means that a server cannot be reached, or refuses every request.
func isOutage(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	var connection *url.Error
	return errors.As(err, &connection) || errors.Is(err, errNothingSent) || utilnet.IsConnectionRefused(err) ||
		apierrors.IsTooManyRequests(err) ||
		apierrors.IsInternalError(err)
}

// note records how a list or watch began. err contains the URL.
func (o *outage) note(logger klog.Logger, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.answered = true
		return
	}
	if !isOutage(err) {
		return // the reflector ends, and its error is logged
	}
	pause := outagePause
	if o.answered {
		pause = outageAgain
	}
	if now := time.Now(); o.logged.IsZero() || now.Sub(o.logged) >= pause {
		o.logged, o.answered = now, false
		logger.Error(err, "The API server cannot be reached, or refuses; trying again")
	}
}

// failures logs why the lists and watches of one kind of object ended.
type failures struct {
	outage *outage
	text   string // of the last line
	logged time.Time
}

// note logs an error, unless the reflector has logged it. The same one is logged every 5 minutes.
func (f *failures) note(logger klog.Logger, err error) {
	if err == nil {
		return // the reflector has logged it
	}
	switch now := time.Now(); {
	case isOutage(err):
		f.outage.note(logger, err)
		return
	case errors.Is(err, io.EOF), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		logger.V(4).Info("Watch ended, listing again", "err", err)
		return
	case err.Error() == f.text && now.Sub(f.logged) < outagePause:
		return
	default:
		f.text, f.logged = err.Error(), now
	}
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		logger.Error(err, "Not allowed to list and watch: check the program's credentials and RBAC rules. Trying again")
	} else {
		logger.Error(err, "Failed to list and watch, trying again")
	}
}
