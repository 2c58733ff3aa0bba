package nft

import (
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// describeService is DescribeService in one family.
func (f *family) describeService(_ model.ServiceName, _ *frontend.Changes, ports []*frontend.PortChange) string {
	if f.table == nil {
		return "" // nothing has been applied yet
	}
	// An empty table whose sets have the names of those in the kernel, so that everything is added. The ports are
	// planned together: otherwise chains that they share would be listed for each.
	base := newTable(f.options)
	base.there, base.sets, base.config = true, f.table.sets, f.table.config
	p := newPlan(base)
	for _, pc := range ports {
		p.changePort(pc)
	}
	first, _ := p.transactions(f.key)
	return first.Text()
}
