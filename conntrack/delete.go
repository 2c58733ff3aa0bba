package conntrack

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// DeleteStale deletes the stale UDP flows of a family in one pass over the table, and returns how many there were. It is
// the plain function for who does not want a [Reconciler]: call it after the services are in force, and never with less
// than all of them.
//
// gone are services, as they were, that may have gone since or lost addresses, ports or node ports; nil if there are none.
// What is rewritten there is stale unless a service has the address now.
//
// A pass that is interrupted is tried again, a few times. With [sink.Snapshot] the services are snapshot.Services().
func DeleteStale(ctx context.Context, table Table, family model.Family, services, gone iter.Seq[*sink.ServiceEntry]) (deleted int, err error) {
	x := newIndex()
	if gone != nil {
		for e := range gone {
			x.set(e.Service.Name, entryPorts(e, family))
		}
		for name := range x.services {
			x.set(name, nil)
		}
	}
	for e := range services {
		x.set(e.Service.Name, entryPorts(e, family))
	}
	return pass(ctx, table, family, x.stale)
}

func entryPorts(e *sink.ServiceEntry, family model.Family) []*udpPort {
	return udpPorts(e.Service, family, func(name model.PortName) []netip.AddrPort {
		var list []netip.AddrPort
		for _, ep := range e.Endpoints {
			if ep.Port == name && ep.Family() == family && serves(ep) {
				list = append(list, ep.Target)
			}
		}
		slices.SortFunc(list, model.CompareTargets)
		return list
	})
}

// serves tells whether flows to an endpoint may go on. New flows go to one that is in a set, whatever it is otherwise.
func serves(e *model.Endpoint) bool { return e.Serving || e.Sets != 0 }

// maxPasses bounds how often an interrupted pass is tried again at once.
const maxPasses = 5

// pass passes over the table, again if it is interrupted.
func pass(ctx context.Context, table Table, family model.Family, stale func(Flow) bool) (deleted int, err error) {
	for range maxPasses {
		var n int
		n, err = table.DeleteUDP(ctx, family, stale)
		deleted += n
		if err == nil || !errors.Is(err, ErrInterrupted) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return deleted, fmt.Errorf("deleting stale %v UDP flows: %w", family, err)
	}
	return deleted, nil
}
