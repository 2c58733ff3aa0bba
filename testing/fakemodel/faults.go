package fakemodel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// ErrFault is wrapped by every error that a Faults makes.
var ErrFault = errors.New("injected fault")

// Faults decides, at random but always the same for a seed, which operations fail. Ask Next at the start of an
// operation: that of a sink, as [Faulty] does, or those of a fake dataplane:
//
//	func (f *fakeDataplane) AddElement(e Element) error {
//		if err := f.faults.Next("add element"); err != nil {
//			return err
//		}
//		...
//
// It may be used by several goroutines, but only one goroutine at a time is reproducible.
type Faults struct {
	seed        uint64
	mu          sync.Mutex
	random      *rand.Rand
	probability float64
	asked       int
	injected    int
}

// NewFaults returns Faults that let an operation fail with a probability from 0 to 1.
func NewFaults(seed uint64, probability float64) *Faults {
	return &Faults{seed: seed, random: rand.New(rand.NewPCG(seed, 0)), probability: probability}
}

// Next returns nil, or the error with which the operation has to fail. The error names the seed and how many operations
// were asked about.
func (f *Faults) Next(operation string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.random.Float64() >= f.probability {
		return nil
	}
	f.injected++
	return fmt.Errorf("%s: %w (seed %d, operation %d)", operation, ErrFault, f.seed, f.asked)
}

// SetProbability changes the probability. With 0 everything succeeds from now on.
func (f *Faults) SetProbability(probability float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probability = probability
}

// Injected returns how many operations failed.
func (f *Faults) Injected() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.injected
}

// FaultySink is a sink whose Sync fails now and then. See [Faulty].
type FaultySink struct {
	*sink.Forward
	faults   *Faults
	injected bool // in the last Sync
}

// Faulty returns a sink that passes everything on, except that Sync fails when faults says so: either before the next
// sink hears of it, or afterwards, when everything has been applied. Both happen in the field, and both mean "not known
// to be applied".
func Faulty(next sink.Sink, faults *Faults) *FaultySink {
	return &FaultySink{Forward: sink.NewForward(next), faults: faults}
}

// ResyncFailed implements [sink.FailureResyncer]. The next sink knows nothing of a fault that was injected.
func (f *FaultySink) ResyncFailed() {
	if f.injected {
		f.ForceResync()
	} else {
		f.Forward.ResyncFailed()
	}
}

// Sync implements [sink.Sink].
func (f *FaultySink) Sync(ctx context.Context) error {
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
