package fakemodel

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// source is the source of a wave: model values or cluster objects.
type source interface {
	fmt.Stringer // describes the accepted objects in messages
	takes(object any) bool
	set(object any) error
	delete(object any) error
	// flush makes the calls for what changed, and reports whether there were any.
	flush(to localstate.Receiver) (bool, error)
	// start makes the next flush describe the complete state.
	start(ctx context.Context) error
}

// newSource returns the source that accepts this object.
func newSource(object any, opts Options) (source, error) {
	for _, s := range []source{newModelSource(), &clusterSource{opts: opts, objects: map[objectKey]metav1.Object{}}} {
		if s.takes(object) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("a driver cannot be fed with a %T", object)
}

// clusterSource feeds cluster objects through package localstate.
type clusterSource struct {
	opts    Options
	state   *localstate.State
	objects map[objectKey]metav1.Object // for restarts
}

type objectKey struct{ kind, namespace, name string }

func (k objectKey) compare(o objectKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

func keyOf(object metav1.Object) objectKey {
	return objectKey{fmt.Sprintf("%T", object), object.GetNamespace(), object.GetName()}
}

func (*clusterSource) takes(object any) bool {
	switch object.(type) {
	case *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Node, *networkingv1.ServiceCIDR:
		return true
	}
	return false
}

func (*clusterSource) String() string { return "cluster objects" }

func (s *clusterSource) set(object any) error {
	kept := object.(runtime.Object).DeepCopyObject().(metav1.Object)
	s.objects[keyOf(kept)] = kept
	_, err := s.state.Apply(kept, false)
	return err
}

func (s *clusterSource) delete(object any) error {
	gone := object.(metav1.Object)
	delete(s.objects, keyOf(gone))
	_, err := s.state.Apply(gone, true)
	return err
}

func (s *clusterSource) flush(to localstate.Receiver) (bool, error) {
	changes := s.state.Flush(to)
	return changes.Any(), nil
}

func (s *clusterSource) start(ctx context.Context) error {
	state, err := localstate.New(ctx, s.opts.State, s.opts.Cluster)
	if err != nil {
		return err
	}
	s.state = state
	for _, key := range slices.SortedFunc(maps.Keys(s.objects), objectKey.compare) {
		if _, err := state.Apply(s.objects[key], false); err != nil {
			return err
		}
	}
	return nil
}
