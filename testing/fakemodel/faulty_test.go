package fakemodel

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// faultySink is a sink whose Sync fails now and then. See [faulty].
type faultySink struct {
	*sink.Forward
	faults   *Faults
	injected bool // in the last Sync
}

// faulty returns a sink that passes everything on, except that Sync fails when faults says so: either before the next
// sink hears of it, or afterwards, when everything has been applied. Both happen in the field, and both mean "not known
// to be applied".
func faulty(next sink.Sink, faults *Faults) *faultySink {
	return &faultySink{Forward: sink.NewForward(next), faults: faults}
}

// ResyncFailed implements [sink.FailureResyncer]. The next sink is not aware of a fault that was injected.
func (f *faultySink) ResyncFailed() {
	if f.injected {
		f.ForceResync()
	} else {
		f.Forward.ResyncFailed()
	}
}

// Sync implements [sink.Sink].
func (f *faultySink) Sync(ctx context.Context) error {
	f.injected = true
	if err := f.faults.Next("before Sync"); err != nil {
		return err
	}
	if err := f.Forward.Sync(ctx); err != nil {
		f.injected = false
		return err
	}
	err := f.faults.Next("after Sync")
	f.injected = err != nil
	return err
}
