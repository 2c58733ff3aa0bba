package ipvs

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// count reads the counters of the family's virtual servers.
func (f *family) count(ctx context.Context) (func(*frontend.Changes, lifecycle.Traffic), error) {
	counters, err := f.dataplane.Counters(ctx)
	if err != nil {
		return nil, err
	}
	return func(_ *frontend.Changes, traffic lifecycle.Traffic) {
		for key, c := range counters {
			if s := f.servers.byKey[key]; s != nil && s.owner != nil {
				traffic.Add(s.owner.name.Service, sink.Traffic{Connections: c.Connections, Bytes: c.Bytes})
			}
		}
	}, nil
}
