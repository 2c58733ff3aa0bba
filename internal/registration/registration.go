// Package registration registers the metrics of what runs for a while.
package registration

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// All registers all collectors, and returns what takes them away again; or none of them, and every reason. A nil
// Registerer wants none.
func All(r prometheus.Registerer, collectors ...prometheus.Collector) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	var done []prometheus.Collector
	unregister = func() {
		for _, c := range done {
			r.Unregister(c)
		}
	}
	for _, c := range collectors {
		if e := r.Register(c); e != nil {
			err = errors.Join(err, e)
			continue
		}
		done = append(done, c)
	}
	if err != nil {
		unregister()
		return nil, err
	}
	return unregister, nil
}
