package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/informers/discovery"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/informers/networking"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// InformersOptions choose, for each kind of object, between the factory's informer and one that the program supplies.
// The zero value uses the factory for everything that kube-proxy watches.
type InformersOptions struct {
	// ServiceInformer and EndpointSliceInformer deliver Services and EndpointSlices. Default: the factory's informers.
	ServiceInformer       coreinformers.ServiceInformer
	EndpointSliceInformer discoveryinformers.EndpointSliceInformer
	// NodeInformer delivers this node's Node. Default: the factory's informer, which watches all Nodes of the cluster.
	// Except on small clusters, use that of a second factory that selects metadata.name=<node name>.
	NodeInformer coreinformers.NodeInformer
	// ServiceCIDRInformer delivers ServiceCIDRs. Default: the factory's informer.
	ServiceCIDRInformer networkinginformers.ServiceCIDRInformer
	// NoNodes leaves the Nodes out, for programs that set NodeIPs and Zone of localstate.Options themselves. Without a
	// factory and a NodeInformer they are left out anyway.
	NoNodes bool
	// NoServiceCIDRs leaves the ServiceCIDRs out. It is for API servers that do not have them (before v1.33) and for
	// programs that may not list them: otherwise Run waits ten seconds for their informer. Without a factory and a
	// ServiceCIDRInformer they are left out anyway.
	NoServiceCIDRs bool
}

// Informers is the [Source] for programs that already have informers of Services and EndpointSlices. It delivers all of
// their objects, except other nodes' Nodes: package localstate ignores those that S1 excludes. It is safe for
// concurrent use.
//
// The factory and the informers belong to the caller, who starts them and shuts them down. NewInformers requests
// informers from the factory, and a factory starts only the informers that have been requested, so call Start after
// NewInformers; calling it a second time is fine. Whether it comes before or after Run does not matter: Run waits.
// Informers that have been shut down cannot be used again.
//
// The program may not be allowed to list ServiceCIDRs, or the API server may not have them; an informer only logs that.
// Only S33 needs them: if they have not been listed ten seconds after everything else, Run logs that and goes on
// without them. They are delivered when they arrive.
//
// An informer whose API server was restored from a backup receives nothing until the resourceVersions are higher than
// before, and only the program that made it can make it list anew: restart that program. [Clientset] does this by
// itself (S68).
//
// Informers that have not listed after 30 seconds are logged and counted, see ListIncomplete of [Handler]. Why they
// have not cannot be seen from outside: the factory is not started, the API server cannot be reached, or a tunnel drops
// the end of streamed lists. Until they have, Synced is not called. With [ListFallback] in their client, they list
// without streaming behind such a tunnel, as [Clientset] does by itself.
//
// A transform function of the informers must not change what package localstate reads. Informers deliver the result of
// a relist object by object; with [Clientset] it is one Update.
type Informers struct {
	inputs map[kind]cache.SharedIndexInformer
	hint   time.Duration // notStartedHint
}

var _ Source = (*Informers)(nil)

// InformerFactory is the part of informers.SharedInformerFactory that [Informers] uses. That interface would make every
// program compile the informers of all resources, whatever its source.
type InformerFactory interface {
	// Core has the informers of Services and Nodes, Discovery that of EndpointSlices, Networking that of ServiceCIDRs.
	Core() core.Interface
	Discovery() discovery.Interface
	Networking() networking.Interface
}

// NewInformers returns a source that takes its objects from the informers in opts, and all others from those of the
// factory. The factory may be nil if opts has both a ServiceInformer and an EndpointSliceInformer. Then Nodes and
// ServiceCIDRs are delivered only if opts has an informer for them.
func NewInformers(factory InformerFactory, opts InformersOptions) (*Informers, error) {
	if err := opts.validate(factory); err != nil {
		return nil, fmt.Errorf("informers source: %w", err)
	}
	if factory != nil {
		opts.ServiceInformer = cmp.Or[coreinformers.ServiceInformer](opts.ServiceInformer, factory.Core().V1().Services())
		opts.EndpointSliceInformer = cmp.Or[discoveryinformers.EndpointSliceInformer](opts.EndpointSliceInformer,
			factory.Discovery().V1().EndpointSlices())
		if !opts.NoNodes {
			opts.NodeInformer = cmp.Or[coreinformers.NodeInformer](opts.NodeInformer, factory.Core().V1().Nodes())
		}
		if !opts.NoServiceCIDRs {
			opts.ServiceCIDRInformer = cmp.Or[networkinginformers.ServiceCIDRInformer](opts.ServiceCIDRInformer,
				factory.Networking().V1().ServiceCIDRs())
		}
	}
	s := &Informers{hint: notStartedHint, inputs: map[kind]cache.SharedIndexInformer{
		services:       opts.ServiceInformer.Informer(),
		endpointSlices: opts.EndpointSliceInformer.Informer(),
	}}
	if opts.NodeInformer != nil {
		s.inputs[nodes] = opts.NodeInformer.Informer()
	}
	if opts.ServiceCIDRInformer != nil {
		s.inputs[serviceCIDRs] = opts.ServiceCIDRInformer.Informer()
	}
	return s, nil
}

func (o InformersOptions) validate(factory InformerFactory) error {
	switch {
	case factory == nil && (o.ServiceInformer == nil || o.EndpointSliceInformer == nil):
		return errors.New("factory is nil, and not both ServiceInformer and EndpointSliceInformer are given")
	case o.NoNodes && o.NodeInformer != nil:
		return errors.New("both NoNodes and a NodeInformer are given")
	case o.NoServiceCIDRs && o.ServiceCIDRInformer != nil:
		return errors.New("both NoServiceCIDRs and a ServiceCIDRInformer are given")
	}
	return nil
}

// DeliversNodes reports whether the source delivers Nodes: see [Source].
func (s *Informers) DeliversNodes() bool { return s.inputs[nodes] != nil }

// notStartedHint is how long Run waits before it logs that the factory may not have been started.
const notStartedHint = 30 * time.Second

// serviceCIDRsGrace is how long Run waits for ServiceCIDRs once everything else has been listed.
const serviceCIDRsGrace = 10 * time.Second

// syncedPoll is how often Run checks whether the informers have delivered everything.
const syncedPoll = 20 * time.Millisecond

// Run implements [Source]. It fails if an informer has been shut down.
func (s *Informers) Run(ctx context.Context, nodeName string, h Handler) error {
	logger := klog.FromContext(ctx)
	var calls calls
	defer calls.stop()
	var needed, optional []cache.ResourceEventHandlerRegistration
	for k, informer := range s.inputs {
		if k == nodes && nodeName == "" {
			continue
		}
		handler := &eventHandler{
			kind:     k,
			nodeName: nodeName,
			calls:    &calls,
			handler:  h,
			logger:   logger,
		}
		registration, err := informer.AddEventHandlerWithOptions(handler, cache.HandlerOptions{Logger: &logger})
		if err != nil {
			return fmt.Errorf("informers source: %s: %w", k, err)
		}
		defer func() {
			if err := informer.RemoveEventHandler(registration); err != nil {
				logger.Error(err, "Failed to remove an event handler from an informer", "resource", k.String())
			}
		}()
		if k == serviceCIDRs {
			optional = append(optional, registration)
		} else {
			needed = append(needed, registration)
		}
	}
	if !awaitSynced(ctx, needed, s.hint) {
		missing := s.unsynced(nodeName)
		names := make([]string, len(missing))
		for i, k := range missing {
			names[i] = k.String()
		}
		logger.Info("Still waiting for informers to list: is the factory started, and was it after NewInformers? If it "+
			"is, and client-go logs that it awaits a bookmark, a tunnel or proxy in between drops the end of streamed "+
			"lists: wrap the client's transport with watch.ListFallback", "resources", names)
		for _, k := range missing {
			reportIncomplete(h, k)
		}
		awaitSynced(ctx, needed, math.MaxInt64)
	}
	if !awaitSynced(ctx, optional, serviceCIDRsGrace) {
		logger.Error(nil, "The informer has not listed this resource: check the program's RBAC rules, or set "+
			"NoServiceCIDRs. "+
			"Continuing without; traffic to unallocated service addresses is not dropped",
			"resource", serviceCIDRs.String())
	}
	if ctx.Err() != nil {
		return nil
	}
	h.Synced()
	<-ctx.Done()
	return nil
}

// unsynced returns the kinds that Run waits for and that have not been listed, sorted.
func (s *Informers) unsynced(nodeName string) (missing []kind) {
	for k, informer := range s.inputs {
		if k != serviceCIDRs && !informer.HasSynced() && (k != nodes || nodeName != "") {
			missing = append(missing, k)
		}
	}
	slices.SortFunc(missing, func(a, b kind) int { return cmp.Compare(a.String(), b.String()) })
	return missing
}

// awaitSynced waits until the registrations have delivered everything, or ctx ends, and returns true; if that takes
// longer than timeout it returns false.
func awaitSynced(ctx context.Context, all []cache.ResourceEventHandlerRegistration, timeout time.Duration) bool {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// client-go can signal this without polling, but only from 0.36 on.
	err := wait.PollUntilContextCancel(waiting, syncedPoll, true, func(context.Context) (bool, error) {
		unsynced := func(r cache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() }
		return !slices.ContainsFunc(all, unsynced), nil
	})
	return err == nil || ctx.Err() != nil
}

// eventHandler passes an informer's events on. It keeps no state: the events have the previous object.
type eventHandler struct {
	kind     kind
	nodeName string
	calls    *calls
	handler  Handler
	logger   klog.Logger
}

var _ cache.ResourceEventHandler = (*eventHandler)(nil)

// OnAdd implements cache.ResourceEventHandler.
func (e *eventHandler) OnAdd(obj any, _ bool) {
	if o := e.object(obj); o != nil {
		e.update(Change{Object: o})
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (e *eventHandler) OnUpdate(before, after any) {
	o, n := e.object(before), e.object(after)
	if n == nil {
		return
	}
	if o != nil && o.GetResourceVersion() == n.GetResourceVersion() && n.GetResourceVersion() != "" {
		return // a resync: the informer repeats its last event
	}
	e.update(Change{Object: n})
}

// OnDelete implements cache.ResourceEventHandler.
func (e *eventHandler) OnDelete(obj any) {
	tombstone, ok := obj.(cache.DeletedFinalStateUnknown)
	if !ok {
		if o := e.object(obj); o != nil {
			e.update(Change{Object: o, Deleted: true})
		}
		return
	}
	// The informer missed the deletion. The tombstone has the last object that it delivered, if any.
	if k, ok := kindOf(tombstone.Obj); ok && k == e.kind {
		e.update(Change{Object: tombstone.Obj.(metav1.Object), Deleted: true})
		return
	}
	namespace, name, found := strings.Cut(tombstone.Key, "/")
	if !found {
		namespace, name = "", namespace
	}
	e.update(key{e.kind, namespace, name}.deleted())
}

// object returns obj if it is of the handler's kind. If a transform function changed its type, it logs that and returns
// nil.
func (e *eventHandler) object(obj any) metav1.Object {
	if k, ok := kindOf(obj); ok && k == e.kind {
		return obj.(metav1.Object)
	}
	e.logger.Error(nil, "Ignoring an object of an unexpected type from an informer",
		"resource", e.kind.String(), "type", fmt.Sprintf("%T", obj))
	return nil
}

// update passes a change to the handler, unless it is about another node's Node, or Run has returned: an informer may
// still call an event handler for a moment after it was removed.
func (e *eventHandler) update(c Change) {
	if wants(e.nodeName, c.Object) && e.calls.begin() {
		defer e.calls.done()
		e.handler.Update(c)
	}
}
