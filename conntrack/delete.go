package conntrack

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// DeleteStale deletes the stale UDP flows of a family in one pass over the table, and returns how many there were. It
// is for callers without a [Reconciler]: call it after the services are applied, and pass every service.
//
// nodePorts are the addresses of this node that serve node ports, for example those of a [nodeaddr.Tracker].
//
// gone has the previous versions of services that may have been deleted, or have lost addresses, ports or node ports,
// since; nil if there are none. Rewritten flows to their addresses are stale unless a service has the address now.
//
// An interrupted pass is retried a few times. With [sink.Snapshot] the services are snapshot.Services().
func DeleteStale(
	ctx context.Context, table Table, family model.Family, nodePorts nodeaddr.Addresses, services,
	gone iter.Seq[*sink.ServiceEntry],
) (deleted int, err error) {
	x := newIndex()
	x.nodeAddresses = nodePorts.Of(family)
	var changes pending
	if gone != nil {
		for e := range gone {
			x.set(e.Service.Name, udpPorts(e.Service, family), servingIn(e, family), &changes)
		}
		for name := range x.services {
			x.set(name, nil, nil, &changes)
		}
	}
	for e := range services {
		x.set(e.Service.Name, udpPorts(e.Service, family), servingIn(e, family), &changes)
	}
	return pass(ctx, table, family, nil, x.stale)
}

// servingIn returns a function that returns the serving endpoints of a port of an entry.
func servingIn(e *sink.ServiceEntry, family model.Family) func(model.PortName) targets {
	serving := map[model.PortName]targets{}
	for _, ep := range e.Endpoints {
		if ep.Port.Protocol == model.UDP && ep.Family() == family && serves(ep) {
			if serving[ep.Port] == nil {
				serving[ep.Port] = targets{}
			}
			serving[ep.Port][ep.Target] = struct{}{}
		}
	}
	return func(port model.PortName) targets { return serving[port] }
}

// serves reports whether flows to an endpoint may go on. New flows go to an endpoint that is in a set, whatever its
// conditions.
func serves(e *model.Endpoint) bool { return e.Serving || e.Sets != 0 }

// maxPasses bounds how often an interrupted pass is repeated at once.
const maxPasses = 5

// pass passes over the table, again if it is interrupted.
func pass(
	ctx context.Context, table Table, family model.Family, only []Selection, stale func(Flow) bool,
) (deleted int, err error) {
	for range maxPasses {
		var n int
		n, err = table.DeleteUDP(ctx, family, only, stale)
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
