package differential

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// toldSource is watch.Informers on informers that hold the whole cluster and get its events one by one. When take
// returns, the state has the event.
type toldSource struct {
	state     *localstate.State
	err       error // of the state
	informers map[string]*toldInformer
	stop      func()
	ended     chan error
}

func startToldSource(ctx context.Context, state *localstate.State) (*toldSource, error) {
	s := &toldSource{state: state, informers: map[string]*toldInformer{}, ended: make(chan error, 1)}
	// The source asks the factory for informers of these types, and gets those that it has.
	factory := clientinformers.NewSharedInformerFactory(nil, 0)
	for _, o := range []object{&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Node{}} {
		i := &toldInformer{store: cluster{}}
		s.informers[kindOf(o).Kind] = i
		factory.InformerFor(runtime.Object(o),
			func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return i })
	}
	source, err := watch.NewInformers(factory, watch.InformersOptions{NoServiceCIDRs: true})
	if err != nil {
		return nil, err
	}
	ctx, s.stop = context.WithCancel(ctx)
	synced := make(chan struct{})
	go func() { s.ended <- source.Run(ctx, nodeName, toldHandler{s, synced}) }()
	select {
	case <-synced:
		return s, nil
	case err := <-s.ended:
		s.stop()
		return nil, errors.Join(err, errors.New("the source ended"))
	}
}

// close ends the source.
func (s *toldSource) close() {
	s.stop()
	<-s.ended
}

func (s *toldSource) take(e event) error {
	s.informers[keyOf(e.object).kind].take(e)
	return s.err
}

// toldHandler applies what the source delivers to the state.
type toldHandler struct {
	s      *toldSource
	synced chan struct{}
}

func (h toldHandler) Synced() { close(h.synced) }

func (h toldHandler) Update(changes ...watch.Change) {
	for _, c := range changes {
		if _, err := h.s.state.Apply(c.Object, c.Deleted); err != nil {
			h.s.err = err
		}
	}
}

// toldInformer is an informer without a reflector. It has what watch.Informers uses.
type toldInformer struct {
	cache.SharedIndexInformer
	store   cluster
	handler cache.ResourceEventHandler
}

func (i *toldInformer) SetTransform(cache.TransformFunc) error { return nil }

func (i *toldInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler,
	_ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = h
	return allSeen{}, nil
}

func (i *toldInformer) RemoveEventHandler(cache.ResourceEventHandlerRegistration) error { return nil }

// take calls the handler as an informer without selectors does.
func (i *toldInformer) take(e event) {
	k := keyOf(e.object)
	old, known := i.store[k]
	switch {
	case !e.deleted && known:
		i.store[k] = e.object
		i.handler.OnUpdate(old, e.object)
	case !e.deleted:
		i.store[k] = e.object
		i.handler.OnAdd(e.object, false)
	case known:
		delete(i.store, k)
		i.handler.OnDelete(old)
	}
}

// allSeen is the registration of a handler that has seen the initial list, which was empty.
type allSeen struct {
	cache.ResourceEventHandlerRegistration
}

func (allSeen) HasSynced() bool { return true }
