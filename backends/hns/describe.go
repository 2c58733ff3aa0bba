package hns

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

var _ sink.Describer = (*Backend)(nil)

// DescribeService implements [sink.Describer]. For each family it returns the HNS endpoints that a service uses and its
// load balancers, as HNS was last known to have them. It waits for a Sync in progress.
func (b *Backend) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	var text strings.Builder
	b.View(name, func(c *frontend.Changes, ports []*frontend.PortChange) {
		d := &description{endpoints: map[string]bool{}, balancers: map[string]bool{}}
		for _, pc := range ports {
			d.add(b.families[c.Family()], pc.After.Name)
		}
		if len(d.balancers) == 0 {
			return
		}
		fmt.Fprintf(&text, "# %v\n", c.Family())
		for _, lines := range []map[string]bool{d.endpoints, d.balancers} {
			for _, line := range slices.Sorted(maps.Keys(lines)) {
				text.WriteString(line)
			}
		}
	})
	return text.String(), nil
}

// description is the lines about a service in one family.
type description struct{ endpoints, balancers map[string]bool }

// add adds what HNS has of a service port.
func (d *description) add(f *family, name model.PortName) {
	lookUp := func(id string) *dp.Endpoint {
		e := f.endpoints.byID[id]
		if e != nil { // the node's own endpoint is in another network
			d.endpoints[e.Text()] = true
		}
		return e
	}
	for _, key := range f.ports[name] {
		b := f.balancers[key]
		if b == nil || b.have == nil {
			continue
		}
		if owner, _ := b.want(); owner == name {
			d.balancers[b.have.Text(lookUp)] = true
		}
	}
}
