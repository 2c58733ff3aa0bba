package nft

import (
	"context"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// DescribeService implements [sink.Describer]: it returns a service's elements in the tables and the chains that they
// point at, which it may share with others, as commands for nft. It renders them as the backend applies them, and does
// not read the kernel; it waits for a Sync in progress.
func (b *Backend) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	var text strings.Builder
	b.View(name, func(c *frontend.Changes, ports []*frontend.PortChange) {
		f := b.family(c.Family())
		if f.table == nil {
			return // nothing has been applied yet
		}
		// An empty table whose sets have the names of those in the kernel, so that everything is added. The ports are
		// planned together: otherwise chains that they share would be listed for each.
		base := newTable()
		base.there, base.sets = true, f.table.sets
		p := newPlan(base, f.table.config)
		for _, pc := range ports {
			p.changePort(pc)
		}
		first, _ := p.transactions(f.key)
		text.WriteString(first.Text())
	})
	return text.String(), nil
}
