package backendtest

import (
	"errors"

	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Loaded is a backend that is changed under load: no flow may be lost meanwhile. It serves the service of the flows,
// with 3 endpoints.
type Loaded struct {
	Flows *Flows
	Model *fm.Model
	// Backend returns the one that runs.
	Backend func() Backend
}

// During changes the model in a loop and lets the backend apply it, see [Flows.NoneIsLostDuring].
func (l Loaded) During(change func(round int), enough int64) {
	l.Flows.t.Helper()
	l.Flows.NoneIsLostDuring(func(round int) error {
		change(round)
		_, err := l.Model.Flush(l.Backend())
		return errors.Join(err, l.Backend().Sync(l.Flows.t.Context()))
	}, enough)
}

// Resized resizes the service, see [Flows.Resize].
func (l Loaded) Resized() {
	l.Flows.t.Helper()
	l.During(func(round int) { l.Flows.Resize(l.Model, round) }, 36)
}

// Restarted restarts the backend, which has missed something each time.
func (l Loaded) Restarted(restart func()) {
	l.Flows.t.Helper()
	l.During(func(round int) {
		restart()
		l.Flows.Replace(l.Model, round)
	}, 6)
}
