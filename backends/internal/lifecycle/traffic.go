package lifecycle

import (
	"context"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Traffic is the sum of what was counted, by service.
type Traffic map[model.ServiceName]sink.Traffic

// Add adds what was counted for a part of a service.
func (t Traffic) Add(name model.ServiceName, counted sink.Traffic) {
	sum := t[name]
	t[name] = sink.Traffic{Connections: sum.Connections + counted.Connections, Bytes: sum.Bytes + counted.Bytes}
}

// CountTraffic implements [sink.TrafficCounter].
func (r *Running) CountTraffic(ctx context.Context) (map[model.ServiceName]sink.Traffic, error) {
	if r.count == nil {
		return nil, nil
	}
	return r.count(ctx)
}

// countTraffic reads first, which takes longer, and waits for a Sync in progress afterwards.
func (s *Spec[F]) countTraffic(ctx context.Context, table *frontend.Table) (Traffic, error) {
	counted := map[model.Family]func(*frontend.Changes, Traffic){}
	for _, f := range s.order {
		add, err := s.Count(s.Families[f], ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		counted[f] = add
	}
	traffic := Traffic{}
	table.ViewFamilies(func(c *frontend.Changes) { counted[c.Family()](c, traffic) })
	return traffic, nil
}
