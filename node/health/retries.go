package health

import (
	"maps"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// retries has the services with a listener that could not be opened or has ended. It has its own lock, because the lock
// of Services is held while listeners end.
type retries struct {
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
func (r *retries) add(name model.ServiceName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.services == nil {
		r.services = map[model.ServiceName]struct{}{}
	}
	r.services[name] = struct{}{}
}

// later makes a Sync try a service again, and requests one: once, however many services there are. Further failures do
// not delay the request; otherwise an endless stream of them would delay it forever.
func (r *retries) later(name model.ServiceName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = map[model.ServiceName]struct{}{}
	}
	r.failed[name] = struct{}{}
	if r.requestSync != nil && !r.stopped && r.timer == nil {
		r.timer = time.AfterFunc(retryPause, r.request)
	}
}

// request requests the Sync that is due.
func (r *retries) request() {
	r.mu.Lock()
	due := r.timer != nil
	r.timer = nil
	r.mu.Unlock()
	if due {
		r.requestSync()
	}
}

// stop ends the requests.
func (r *retries) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.cancelRequest()
}

// cancelRequest cancels the request for a Sync. The caller holds the lock.
func (r *retries) cancelRequest() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// take returns the services for a Sync that is under way. If it takes those that failed, it cancels the request.
func (r *retries) take() map[model.ServiceName]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	services := r.services
	r.services = nil
	if now := time.Now(); len(r.failed) > 0 && now.Sub(r.tried) >= r.pause {
		r.cancelRequest()
		maps.Copy(r.failed, services)
		services, r.failed, r.tried = r.failed, nil, now
	}
	return services
}
