package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// cluster has the objects of a cluster, and computes the node-local state of the node under test from them.
type cluster struct {
	local    *localstate.State
	objects  map[string]metav1.Object // Services and EndpointSlices, by type and name
	recorder sink.Recorder
}

// newCluster returns a cluster without services, for a backend that has external IPs or not.
func newCluster(ctx context.Context, set setup, families []model.Family, externalIPs bool) (*cluster, error) {
	local, err := localstate.New(ctx, set.localstate(families), localstate.ClusterOptions{NoExternalIPs: !externalIPs})
	if err != nil {
		return nil, err
	}
	for _, object := range set.objects(families) {
		if _, err := local.Apply(object, false); err != nil {
			return nil, err
		}
	}
	return &cluster{local: local}, nil
}

// put replaces the Services and EndpointSlices, and passes the resulting changes to a sink.
func (c *cluster) put(objects []metav1.Object, to sink.Sink) (state, error) {
	var errs []error
	apply := func(object metav1.Object, deleted bool) {
		_, err := c.local.Apply(object, deleted)
		errs = append(errs, err)
	}
	before := c.objects
	c.objects = map[string]metav1.Object{}
	for _, object := range objects {
		name := fmt.Sprintf("%T %s", object, object.GetName())
		c.objects[name] = object
		delete(before, name)
		apply(object, false)
	}
	for _, gone := range before {
		apply(gone, true)
	}
	c.local.Flush(sink.Tee(&c.recorder, to))
	errs = append(errs, c.recorder.Sync(context.Background()))
	c.recorder.TakeWaves() // they are not used, and would pile up
	return state{c.recorder.Node(), c.recorder.Services(), c.recorder.Endpoints()}, errors.Join(errs...)
}

// state is the complete state that a backend has been given.
type state struct {
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
}

// isExternal reports whether an address is an external IP or VIP of a service.
func (st state) isExternal(a netip.Addr) bool {
	for _, svc := range st.services {
		if slices.Contains(svc.ExternalIPs, a) || slices.Contains(svc.LoadBalancerIPs, a) {
			return true
		}
	}
	return false
}

// oracle returns the oracle for the state on a node.
func (st state) oracle(node oracle.Config) (*oracle.Oracle, error) {
	return oracle.New(st.collect(), node)
}

func (st state) collect() oracle.State {
	return oracle.Collect(st.node, maps.Values(st.services), maps.Values(st.endpoints))
}
