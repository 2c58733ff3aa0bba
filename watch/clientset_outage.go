package watch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// noAnswer is how long a request may be without an answer until that is logged. client-go tries to begin a watch eleven
// times if the connection times out or is closed, and returns no error. With connections that are closed at once that
// takes ten seconds; with packets that are dropped, more than five minutes.
const noAnswer = 15 * time.Second

// errNoAnswer is what is logged after noAnswer.
var errNoAnswer = errors.New("no answer for 15 seconds")

// Pauses between two log lines about an API server that does not answer: if it has not answered since, and if it has.
const (
	outagePause = 5 * time.Minute
	outageAgain = 30 * time.Second
)

// outage logs that an API server cannot be reached: client-go would try again without logging it, or each kind of
// object would log it separately. All kinds of objects of a run share it.
type outage struct {
	server string // URL, for errors that do not contain it; "" if it is not known

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
		errors.Is(err, errNoAnswer) || apierrors.IsTooManyRequests(err) || isServerError(err)
}

// isServerError reports whether a server, or a load balancer in front of it, answered that it cannot answer now. A
// replica that lags behind can: the next request comes without a version.
func isServerError(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) && answer.Status().Code >= http.StatusInternalServerError &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// serverOf returns the URL of a client's server, or "" if the client does not know it, like a fake one.
func serverOf(client rest.Interface) string {
	c, ok := client.(*rest.RESTClient)
	if !ok || c == nil {
		return ""
	}
	u := c.Get().URL()
	return u.Scheme + "://" + u.Host
}

// awaiting notes that a request is without an answer, from time to time until the returned function is called.
func (o *outage) awaiting(ctx context.Context) (answered func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		clk := contextClock{ctx: ctx}
		for <-clk.After(noAnswer); ctx.Err() == nil; <-clk.After(noAnswer) {
			o.note(klog.FromContext(ctx), errNoAnswer)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// note records how a list or watch began.
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
		if o.server != "" {
			logger = logger.WithValues("server", o.server)
		}
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
		logger.V(4).Info("Watch ended; listing again", "err", err)
		return
	case err.Error() == f.text && now.Sub(f.logged) < outagePause:
		return
	default:
		f.text, f.logged = err.Error(), now
	}
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		logger.Error(err, "Not allowed to list and watch: check the program's credentials and RBAC rules. Trying again")
	} else {
		logger.Error(err, "Failed to list and watch; trying again")
	}
}
