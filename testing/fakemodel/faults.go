package fakemodel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// ErrFault is wrapped by every error that a Faults makes.
var ErrFault = errors.New("injected fault")

// Faults decides which operations fail, at random but reproducibly by seed. Call Next at the start of an operation of a
// fake dataplane. If the fake has a hook for that, like those of backends/hns and backends/ipvs, set fake.Fail =
// faults.Next; otherwise:
//
//	func (f *fakeDataplane) AddElement(e Element) error {
//		if err := f.faults.Next("add element"); err != nil {
//			return err
//		}
//		...
//
// It is safe for concurrent use, but only reproducible with one goroutine at a time.
type Faults struct {
	seed        uint64
	mu          sync.Mutex
	random      *rand.Rand
	probability float64
	asked       int
	injected    int
}

// NewFaults returns a Faults that makes each operation fail with this probability, from 0 to 1.
func NewFaults(seed uint64, probability float64) *Faults {
	return &Faults{seed: seed, random: rand.New(rand.NewPCG(seed, 0)), probability: probability}
}

// Next returns nil, or the error with which the operation has to fail. The error has the seed and the number of the
// operation.
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
