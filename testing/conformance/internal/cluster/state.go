package cluster

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

// Cluster has the objects of a cluster, and computes the node-local state of the node under test from them.
type Cluster struct {
	local    *localstate.State
	objects  map[string]metav1.Object // Services and EndpointSlices, by type and name
	recorder sink.Recorder
}

// New returns a cluster without services, for a backend that has external IPs or not.
func New(ctx context.Context, set Setup, families []model.Family, externalIPs bool) (*Cluster, error) {
	local, err := localstate.New(ctx, set.Localstate(families), localstate.ClusterOptions{NoExternalIPs: !externalIPs})
	if err != nil {
		return nil, err
	}
	for _, object := range set.Objects(families) {
		if _, err := local.Apply(object, false); err != nil {
			return nil, err
		}
	}
	return &Cluster{local: local}, nil
}

// Put replaces the Services and EndpointSlices, and passes the resulting changes to a sink.
func (c *Cluster) Put(objects []metav1.Object, to sink.Sink) (State, error) {
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
	return State{Node: c.recorder.Node(), Services: c.recorder.Services(), Endpoints: c.recorder.Endpoints()},
		errors.Join(errs...)
}

// State is the complete state that a backend has been given.
type State struct {
	Node      *model.Node
	Services  map[model.ServiceName]*model.Service
	Endpoints map[model.EndpointKey]*model.Endpoint
}

// IsExternal reports whether an address is an external IP or VIP of a service.
func (st State) IsExternal(a netip.Addr) bool {
	for _, svc := range st.Services {
		if slices.Contains(svc.ExternalIPs, a) || slices.Contains(svc.LoadBalancerIPs, a) {
			return true
		}
	}
	return false
}

// Oracle returns the oracle for the state on a node.
func (st State) Oracle(node oracle.Config) (*oracle.Oracle, error) {
	return oracle.New(st.Collect(), node)
}

// Collect returns the state as the oracle takes it.
func (st State) Collect() oracle.State {
	return oracle.Collect(st.Node, maps.Values(st.Services), maps.Values(st.Endpoints))
}
