package benchmarks

import (
	"errors"
	"sync"
	"sync/atomic"
)

// writers is how many requests the API server gets at once.
const writers = 16

// inParallel calls f with the numbers from 0 to n-1, and ends early after an error.
func inParallel(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, writers)
	for w := range errs {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
				if errs[w] = f(i); errs[w] != nil {
					next.Store(int64(n))
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
