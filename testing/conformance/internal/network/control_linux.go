package network

import (
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// Control makes connections that bypass the node under test: from other-node to the pod behind it, alternately by TCP
// and UDP. They use the same kernel, links, sockets and servers as all others, but no rules of the node: only a lack of
// processor time delays them.
type Control struct {
	n     Network
	flows []Attempt
	next  int
}

// NewControl returns a control with source ports of its own, so that those of other clients depend on their seed alone.
func (n *Network) NewControl(seed uint64) *Control {
	c := &Control{n: *n}
	c.n.ports = newPortAllocator(seed)
	for _, f := range n.families {
		to := HostNamed(FarPod).ServerAt(f)
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			c.flows = append(c.flows, HostNamed(OtherNode).FlowTo(to, protocol, "a pod, past the node"))
		}
	}
	return c
}

// Try makes one connection, and reports whether it was answered without losing a packet.
func (c *Control) Try(p Timeouts) bool {
	flow := c.flows[c.next%len(c.flows)]
	c.next++
	seen := c.n.Try(flow, p)
	return seen.Verdict == oracle.Deliver && !seen.Lost
}
