package health

import (
	"maps"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// again has the services with a listener that could not be opened or has ended. It has its own lock, because the lock
// of Services is held while listeners end.
type again struct {
	requestSync func() // may be nil

	mu       sync.Mutex
	services map[model.ServiceName]struct{} // for the next Sync
	failed   map[model.ServiceName]struct{} // for a Sync to try again, at most once per pause
	pause    time.Duration
	tried    time.Time   // when a Sync last took those that had failed
	timer    *time.Timer // calls requestSync; nil if no request is due
	stopped  bool
}

// failurePause is the shortest time between two attempts to open a listener, however often there is a Sync: each
// failure causes an Event.
const failurePause = time.Second

// retryPause is the time after which a Sync is requested for a listener that could not be opened or has failed.
const retryPause = 30 * time.Second

// add makes the next Sync check a service.
func (a *again) add(name model.ServiceName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.services == nil {
		a.services = map[model.ServiceName]struct{}{}
	}
	a.services[name] = struct{}{}
}

// later makes a Sync try a service again, and requests one: once, however many services there are. Further failures do
// not delay the request; otherwise an endless stream of them would delay it forever.
func (a *again) later(name model.ServiceName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = map[model.ServiceName]struct{}{}
	}
	a.failed[name] = struct{}{}
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

// callOff cancels the request. The caller holds the lock.
func (a *again) callOff() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// take returns the services for a Sync that is under way. If it takes those that failed, it cancels the request.
func (a *again) take() map[model.ServiceName]struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	services := a.services
	a.services = nil
	if now := time.Now(); len(a.failed) > 0 && now.Sub(a.tried) >= a.pause {
		a.callOff()
		maps.Copy(a.failed, services)
		services, a.failed, a.tried = a.failed, nil, now
	}
	return services
}
