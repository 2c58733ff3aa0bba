package backendtest

import (
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Loaded is a backend that is changed under load, by its driver: no flow may be lost meanwhile. It serves the service
// of the flows, with 3 endpoints.
type Loaded struct {
	flows  *Flows
	driver *fm.Driver
}

// NewLoaded describes the service.
func NewLoaded(f *Flows, d *fm.Driver) Loaded {
	f.Describe(driven{d}, 3)
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

// Resized resizes the service, see [Flows.Resize].
func (l Loaded) Resized() {
	l.flows.t.Helper()
	l.During(func(round int) { l.flows.Resize(driven{l.driver}, round) }, 36)
}

// Restarted restarts the backend, which has missed something each time.
func (l Loaded) Restarted() {
	l.flows.t.Helper()
	l.During(func(round int) {
		l.driver.Restart()
		l.flows.Replace(driven{l.driver}, round)
	}, 6)
}

// driven describes to a driver.
type driven struct{ *fm.Driver }

func (d driven) SetNode(n *model.Node)              { d.Set(n) }
func (d driven) SetService(s *model.Service)        { d.Set(s) }
func (d driven) DeleteService(n model.ServiceName)  { d.Delete(n) }
func (d driven) SetEndpoint(ep *model.Endpoint)     { d.Set(ep) }
func (d driven) DeleteEndpoint(k model.EndpointKey) { d.Delete(k) }
