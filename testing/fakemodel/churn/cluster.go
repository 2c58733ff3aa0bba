package churn

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Cluster is a simulated cluster. Its methods are not safe for concurrent use.
type Cluster struct {
	opts     Options
	random   *rand.Rand
	nodes    []*node
	services []*service
	slots    []int  // those of services that do not exist
	unstable []*pod // that are not simply ready, or were so when they came here
	zones    []string
}

// node is a node with the places for pods on it.
type node struct {
	Node
	index  int
	places int
	used   int   // places that were ever used
	free   []int // places that are free again, the longest free first
}

// namespace is where all services are.
const namespace = "churn"

// New returns a cluster in which every service has its pods, all of them ready. The error joins all problems with the
// options.
func New(opts Options) (*Cluster, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, random: rand.New(rand.NewPCG(opts.Seed, 0))}
	for i, n := range opts.Topology {
		c.nodes = append(c.nodes, &node{Node: n, index: i, places: len(n.Pods)})
	}
	if len(opts.Topology) == 0 {
		for i := range opts.Nodes {
			c.nodes = append(c.nodes, &node{Node: opts.defaultNode(i), index: i, places: opts.podsPerNode() - 2})
		}
	}
	for _, n := range c.nodes {
		if n.Zone != "" && !slices.Contains(c.zones, n.Zone) {
			c.zones = append(c.zones, n.Zone)
		}
	}
	for slot := opts.Services + c.margin() - 1; slot >= 0; slot-- {
		c.slots = append(c.slots, slot)
	}
	for range opts.Services {
		c.addService(len(c.slots)-1, ready)
	}
	return c, nil
}

// margin is how much the number of services may differ from Options.Services.
func (c *Cluster) margin() int { return max(1, c.opts.Services/10) }

// Objects returns all objects of the cluster now, like the first list of a watch: service CIDRs, nodes, and services,
// each followed by its slices.
func (c *Cluster) Objects() []watch.Change {
	objects := set(kube.ServiceCIDR("kubernetes", c.opts.serviceCIDRs()...))
	for _, n := range c.nodes {
		objects = append(objects, set(n.object())...)
	}
	for _, s := range c.services {
		objects = append(objects, set(s.object())...)
		objects = append(objects, c.groupChanges(s, s.groups...)...)
	}
	return objects
}

// Pods returns the addresses of the pods that are ready and those that drain, in no particular order, for tests that
// run servers there. A dual-stack pod has two.
func (c *Cluster) Pods() []netip.Addr {
	var addrs []netip.Addr
	for _, s := range c.services {
		for _, group := range s.groups {
			for _, p := range group.pods {
				if p.phase == ready || p.phase == draining {
					addrs = append(addrs, p.ips...)
				}
			}
		}
	}
	return addrs
}

func (n *node) object() metav1.Object {
	b := kube.Node(n.Name).InternalIP(texts(n.IPs)...).PodCIDR(texts(n.PodCIDRs)...)
	if n.Zone != "" {
		b.Zone(n.Zone)
	}
	return b.Build()
}

// takePlace returns a free place on a random node or, if it has none, on one of the next. A place that has become free
// is used again only when the node has none left that never was used.
func (c *Cluster) takePlace() (n *node, place int, ok bool) {
	first := c.random.IntN(len(c.nodes))
	for i := range c.nodes {
		n := c.nodes[(first+i)%len(c.nodes)]
		switch {
		case n.used < n.places:
			n.used++
			return n, n.used - 1, true
		case len(n.free) > 0:
			place, n.free = n.free[0], n.free[1:]
			return n, place, true
		}
	}
	return nil, 0, false
}

// podIPs returns the addresses of a place.
func (c *Cluster) podIPs(n *node, place int) []netip.Addr {
	if n.Pods != nil {
		return n.Pods[place]
	}
	return c.opts.podIPs(n.index, place)
}

// text returns a random suffix like those of pods' names.
func (c *Cluster) text(length int) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	b := make([]byte, length)
	for i := range b {
		b[i] = letters[c.random.IntN(len(letters))]
	}
	return string(b)
}
