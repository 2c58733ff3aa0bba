package hns

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// describeService is DescribeService in one family.
func (f *family) describeService(_ model.ServiceName, _ *frontend.Changes, ports []*frontend.PortChange) string {
	d := &description{endpoints: map[string]bool{}, balancers: map[string]bool{}}
	for _, pc := range ports {
		d.add(f, pc.After.Name)
	}
	if len(d.balancers) == 0 {
		return ""
	}
	lines := append(slices.Sorted(maps.Keys(d.endpoints)), slices.Sorted(maps.Keys(d.balancers))...)
	return fmt.Sprintf("# %v\n", f.key) + strings.Join(lines, "")
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
