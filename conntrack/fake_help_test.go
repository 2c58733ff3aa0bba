package conntrack

import "sigs.k8s.io/kube-proxy-lib/model"

// lastSelections returns those that DeleteUDP was last called with for a family; none if that was a pass over all flows.
func (t *Fake) lastSelections(family model.Family) []Selection {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.selections[family]
}

// passesOf returns how often DeleteUDP was called for a family.
func (t *Fake) passesOf(family model.Family) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passes[family]
}
