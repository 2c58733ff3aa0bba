package churn

import (
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Options has the size and shape of a cluster. The zero value is a small cluster.
type Options struct {
	// Seed determines all random choices.
	Seed uint64
	// Services is the number of services, exact at the start and approximate later. Default 10.
	Services int
	// Endpoints is the number of ready pods of a service, exact at the start and from 0 to twice as many later. Default
	// 3.
	Endpoints int
	// Nodes is the number of nodes, called n1, n2 and so on. Default 3.
	Nodes int
	// Zones is the number of zones of the nodes, called z1, z2 and so on. Default 2; negative: the nodes have no zones.
	Zones int
	// DualStack gives every service, node and pod an IPv6 address as well.
	DualStack bool
	// Topology replaces Nodes and Zones by the caller's nodes, for tests with real pods. If there are not enough places
	// for pods, services have fewer.
	Topology []Node
}

// Node is a node of a cluster and the pods that can be on it.
type Node struct {
	Name     string         // required, and unique
	Zone     string         // "": in none
	IPs      []netip.Addr   // the primary one of each family first
	PodCIDRs []netip.Prefix // may be empty
	// Pods are the addresses of the pods that can be on the node: for each one an IPv4 address, and an IPv6 address
	// after it if the cluster is dual-stack. They are reused when a pod is gone.
	Pods [][]netip.Addr
}

// maxPods is how many addresses there are for pods of a default topology, in 10.128.0.0/9.
const maxPods = 1 << 23

// withDefaults fills in the defaults and returns all errors.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	number := func(name string, value *int, byItself, most int) {
		if *value == 0 {
			*value = byItself
		}
		if *value < 0 || *value > most {
			errs = append(errs, fmt.Errorf("%s is %d, want 0 to %d", name, *value, most))
		}
	}
	number("Services", &o.Services, 10, 1<<17)
	number("Endpoints", &o.Endpoints, 3, 1<<15)
	number("Nodes", &o.Nodes, 3, 1<<14)
	if o.Zones == 0 {
		o.Zones = 2
	}
	if len(errs) == 0 && len(o.Topology) == 0 && o.podsPerNode()*o.Nodes > maxPods {
		errs = append(errs, fmt.Errorf("there are not enough addresses for %d services with %d endpoints", o.Services,
			o.Endpoints))
	}
	for i, node := range o.Topology {
		if node.Name == "" {
			errs = append(errs, fmt.Errorf("node %d of Topology has no name", i+1))
		}
		for _, pod := range node.Pods {
			if !o.fits(pod) {
				errs = append(errs, fmt.Errorf("node %s of Topology: a pod cannot have the addresses %v", node.Name,
					pod))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return o, fmt.Errorf("churn: %w", err)
	}
	return o, nil
}

// fits reports whether a pod has an address of each family of the cluster, and in the right order.
func (o Options) fits(pod []netip.Addr) bool {
	families := []model.Family{model.IPv4}
	if o.DualStack {
		families = append(families, model.IPv6)
	}
	if len(pod) != len(families) {
		return false
	}
	for i, f := range families {
		if model.FamilyOf(pod[i]) != f {
			return false
		}
	}
	return true
}

// podsPerNode returns the size of a node's pod range in a default topology, a power of 2 from 256: there is room for
// four times as many pods as there are at the start.
func (o Options) podsPerNode() int {
	size := 256
	for size < 4*o.Services*o.Endpoints/o.Nodes {
		size *= 2
	}
	return size
}
