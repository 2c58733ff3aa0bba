package frontend

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// PortErrors joins a [*sink.PortError] for each service port with refusals by the dataplane; nil if there is none. They
// are ordered by name, and the errors of a port are sorted, so that the same state gives the same text. Of many errors
// of a port the first ten are named.
func PortErrors(f model.Family, refused map[model.PortName][]error) error {
	errs := make([]error, 0, len(refused))
	for _, name := range slices.SortedFunc(maps.Keys(refused), model.PortName.Compare) {
		list := slices.Clone(refused[name])
		slices.SortFunc(list, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		var few failures.List // nobody reads those of 10,000 addresses
		for _, err := range list {
			few.Add(err)
		}
		errs = append(errs, &sink.PortError{Port: name, Family: f, Err: few.Err()})
	}
	return errors.Join(errs...)
}
