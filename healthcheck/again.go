package healthcheck

import (
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// again has the services with a listener that could not be opened or has ended. It has a lock of its own because
// Services' is held while listeners end.
type again struct {
	requestSync func() // may be nil

	mu       sync.Mutex
	services map[model.ServiceName]struct{}
	timer    *time.Timer // calls requestSync; nil if no request is due
	stopped  bool
}

// retryPause is the time after which a Sync is requested for a listener that could not be opened or has failed.
const retryPause = 30 * time.Second

// add makes the next Sync look at a service.
func (a *again) add(name model.ServiceName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.services == nil {
		a.services = map[model.ServiceName]struct{}{}
	}
	a.services[name] = struct{}{}
}

// later adds a service, and requests the Sync: once, however many services there are. Further failures do not put off
// the request, or an endless stream of them would put it off forever.
func (a *again) later(name model.ServiceName) {
	a.add(name)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.requestSync != nil && !a.stopped && a.timer == nil {
		a.timer = time.AfterFunc(retryPause, a.request)
	}
}

// request requests the Sync that is due.
func (a *again) request() {
	a.mu.Lock()
	due := a.timer != nil
	a.timer = nil
	a.mu.Unlock()
	if due {
		a.requestSync()
	}
}

// stop ends the requests.
func (a *again) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.callOff()
}

// callOff calls off the request. The lock is held.
func (a *again) callOff() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// take returns the services, and calls off the request: the Sync that takes them is under way.
func (a *again) take() map[model.ServiceName]struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.callOff()
	services := a.services
	a.services = nil
	return services
}
