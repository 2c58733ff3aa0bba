// Package failures joins errors, of which there can be one for each of thousands of endpoints or addresses, and says
// how often to log what fails in Sync after Sync.
package failures

import (
	"errors"
	"fmt"
	"slices"
)

// List collects errors, but no more than anyone would read. Its zero value is empty.
type List struct {
	errs []error
	more int
}

// maxNamed is how many errors are named: the rest is counted.
const maxNamed = 10

// Add adds an error. One that is nil is ignored.
func (l *List) Add(err error) {
	switch {
	case err == nil:
	case len(l.errs) < maxNamed:
		l.errs = append(l.errs, err)
	default:
		l.more++
	}
}

// Err joins the errors. It is nil if there is none.
func (l *List) Err() error {
	if l.more > 0 {
		return errors.Join(append(slices.Clone(l.errs), fmt.Errorf("and %d more errors", l.more))...)
	}
	return errors.Join(l.errs...)
}
