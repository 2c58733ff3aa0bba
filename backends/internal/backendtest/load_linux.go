package backendtest

import fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"

// Loaded is a backend that is changed under load, by its driver: no flow may be lost meanwhile. It serves the service
// of the flows, with 3 endpoints.
type Loaded struct {
	flows  *Flows
	driver *fm.Driver
}

// NewLoaded sets a node and the service.
func NewLoaded(f *Flows, d *fm.Driver) Loaded {
	d.Set(Node(), f.Service(), f.Endpoint(1), f.Endpoint(2), f.Endpoint(3))
	return Loaded{f, d}
}

// During makes changes in a loop and lets the backend apply them, see [Flows.NoneIsLostDuring].
func (l Loaded) During(change func(round int), enough int64) {
	l.flows.t.Helper()
	l.flows.NoneIsLostDuring(func(round int) error {
		change(round)
		defer l.driver.Transcript() // which nobody reads, and which would grow for as long as the loop runs
		return l.driver.TrySync()
	}, enough)
}

// Resized resizes the service: to 12 endpoints and back, and at each second round another endpoint in place of one that
// is there. 36 rounds cover everything that it does.
func (l Loaded) Resized() {
	l.flows.t.Helper()
	l.During(func(round int) {
		if i := 4 + round/2%9; round%2 == 0 {
			l.driver.Delete(l.flows.Endpoint(1 + round%3))
			l.driver.Set(l.flows.Endpoint(i))
		} else {
			l.driver.Set(l.flows.Endpoint(1 + (round-1)%3))
			if round/18%2 == 1 {
				l.driver.Delete(l.flows.Endpoint(i))
			}
		}
	}, 36)
}

// Restarted restarts the backend, each time after it has missed that endpoints were replaced.
func (l Loaded) Restarted() {
	l.flows.t.Helper()
	l.During(func(round int) {
		l.driver.Restart()
		if round%2 == 0 {
			l.driver.Delete(l.flows.Endpoint(1))
			l.driver.Set(l.flows.Endpoint(4))
		} else {
			l.driver.Delete(l.flows.Endpoint(4), l.flows.Endpoint(5+(round+1)%3))
			l.driver.Set(l.flows.Endpoint(1), l.flows.Endpoint(5+round%3))
		}
	}, 6)
}
