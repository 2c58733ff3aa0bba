package fakemodel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// ErrFault is wrapped by every error of a Faults.
var ErrFault = errors.New("injected fault")

// Faults makes operations fail at random, reproducibly by seed. Call Next at the start of each operation of a fake
// dataplane. If the fake has a hook, like those of backends/hns and backends/ipvs, set fake.Fail = faults.Next;
// otherwise:
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

// NewFaults returns a Faults that makes each operation fail with this probability (0 to 1).
func NewFaults(seed uint64, probability float64) *Faults {
	return &Faults{seed: seed, random: rand.New(rand.NewPCG(seed, 0)), probability: probability}
}

// Next returns nil, or the error that the operation has to return. The error contains the seed and the operation's
// number.
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

// SetProbability changes the probability. With 0 all operations succeed from now on.
func (f *Faults) SetProbability(probability float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probability = probability
}
