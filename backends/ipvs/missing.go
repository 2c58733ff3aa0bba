package ipvs

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// missing is the search for virtual servers that another program has deleted: the kernel does not report that, so they
// are listed from time to time, at most for a two-hundredth of the time in each family.
type missing struct {
	listed time.Time     // when they were last listed
	pause  time.Duration // until they are listed again
	failed bool          // the last ones could not be restored: everything is to be read again
}

// listShare is the pause between two lists, as a multiple of the time that a list takes.
const listShare = 200

// listServers lists the virtual servers of both families.
func (f *family) listServers(ctx context.Context) ([]dp.Server, error) {
	begin := time.Now()
	list, err := f.dataplane.Servers(ctx)
	f.missing = missing{listed: begin, pause: max(f.options.drainInterval, listShare*time.Since(begin))}
	return list, err
}

// restoreServers adds the virtual servers that another program has deleted, if it is time to look for them.
func (f *family) restoreServers(ctx context.Context, c *frontend.Changes, now time.Time) (restored bool, err error) {
	if !f.known || now.Sub(f.missing.listed) <= f.missing.pause-f.options.drainInterval/2 { // the ticker need not be exact
		return false, nil
	}
	list, err := f.listServers(ctx)
	if err != nil {
		return false, err
	}
	there := make(map[dp.ServerKey]bool, len(list))
	for _, s := range list {
		there[s.ServerKey] = true
	}
	var gone []*server
	owners := map[model.PortName]bool{}
	for key, s := range f.servers.byKey {
		if !s.exists || there[key] {
			continue
		}
		s.lose()
		f.servers.dirty[s] = true
		gone = append(gone, s)
		if s.owner != nil {
			owners[s.owner.name] = true
		}
	}
	if len(gone) == 0 {
		return false, nil
	}
	for name := range owners {
		f.ports.put(c.Port(name))
	}
	err = f.commit(ctx, c)
	f.missing.failed = err != nil
	gone = slices.DeleteFunc(gone, func(s *server) bool { return !s.exists }) // not wanted any more, or refused
	if err == nil && len(gone) > 0 {
		f.metrics.repairs.Inc()
		klog.FromContext(ctx).Info("Restored virtual servers that another program had deleted", "family", f.key,
			"count", len(gone), "first", gone[0].key)
	}
	return len(gone) > 0, err
}
