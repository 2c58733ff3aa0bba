package sink_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// printer is a sink for people: it collects the calls, and prints the state when it is complete.
type printer map[model.EndpointKey]*model.Endpoint

func (p printer) SetService(*model.Service)            {}
func (p printer) DeleteService(model.ServiceName)      {}
func (p printer) SetEndpoint(e *model.Endpoint)        { p[e.Key()] = e }
func (p printer) DeleteEndpoint(key model.EndpointKey) { delete(p, key) }
func (p printer) Sync(context.Context) error {
	for key := range p {
		fmt.Println(key)
	}
	return nil
}

// A backend that processes each change implements Sink.
func ExampleSink() {
	var s sink.Sink = printer{}
	web := web()
	s.SetService(web)
	s.SetEndpoint(&model.Endpoint{Port: web.PortName(web.Ports[0]), Target: netip.MustParseAddrPort("10.0.0.1:8080")})
	if err := s.Sync(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: shop/web:http/TCP -> 10.0.0.1:8080
}

// A backend that prefers the full state is a callback. This one applies what changed since it last succeeded.
func ExampleNewFullState() {
	var applied *sink.Snapshot
	apply := func(_ context.Context, s *sink.Snapshot) error {
		fmt.Println(s)
		for change := range s.ChangesSince(applied) {
			if change.New == nil {
				fmt.Println("  service removed:", change.Name)
			} else if change.ServiceChanged() {
				fmt.Println("  service added or changed:", change.Name)
			}
			for old, new := range change.Endpoints() {
				if new == nil {
					fmt.Println("  endpoint removed:", old.Target)
				} else {
					fmt.Println("  endpoint added or changed:", new.Target)
				}
			}
		}
		applied = s // after an error it stays, so that the next changes are those since the last success
		return nil
	}

	s := sink.NewFullState(apply)
	web := web()
	http := web.PortName(web.Ports[0])
	one := &model.Endpoint{Port: http, Target: netip.MustParseAddrPort("10.0.0.1:8080"), Sets: model.ClusterSet}
	two := &model.Endpoint{Port: http, Target: netip.MustParseAddrPort("10.0.0.2:8080"), Sets: model.ClusterSet}

	s.SetService(web)
	s.SetEndpoint(one)
	if err := s.Sync(context.Background()); err != nil {
		fmt.Println(err)
	}
	s.DeleteEndpoint(one.Key())
	s.SetEndpoint(two)
	if err := s.Sync(context.Background()); err != nil {
		fmt.Println(err)
	}
	for e := range applied.Service(web.Name).SetEndpoints("http", model.TCP, model.IPv4, model.ClusterSet) {
		fmt.Println("now in the cluster set:", e.Target)
	}
	// Output:
	// revision 1 (services: 1, endpoints: 1)
	//   service added or changed: shop/web
	//   endpoint added or changed: 10.0.0.1:8080
	// revision 2 (services: 1, endpoints: 1)
	//   endpoint removed: 10.0.0.1:8080
	//   endpoint added or changed: 10.0.0.2:8080
	// now in the cluster set: 10.0.0.2:8080
}

// One sink gets everything, another one all but a namespace.
func ExampleFilter() {
	var all, some sink.Recorder
	s := sink.Tee(&all, sink.Filter(&some, sink.Keep{
		Service: func(s *model.Service) bool { return s.Name.Namespace != "shop" }}))

	s.SetService(web())
	s.SetService(&model.Service{Name: model.ServiceName{Namespace: "kube-system", Name: "dns"}})
	if err := s.Sync(context.Background()); err != nil {
		fmt.Println(err)
	}
	fmt.Println(len(all.Services()), "and", len(some.Services()))
	// Output: 2 and 1
}

// A Recorder next to a backend shows the calls that the backend gets.
func ExampleTee() {
	var told sink.Recorder
	s := sink.Tee(printer{}, &told)

	s.SetNode(&model.Node{Name: "node-1", Zone: "a"}) // only the Recorder implements it
	s.SetService(web())
	if err := s.Sync(context.Background()); err != nil {
		fmt.Println(err)
	}
	for _, line := range told.TakeLines() {
		fmt.Println(line)
	}
	// Output:
	// SetNode node-1 zone=a
	// SetService shop/web cluster-ips=10.96.0.10; http 80/TCP
	// Sync
}

func web() *model.Service {
	return &model.Service{
		Name:       model.ServiceName{Namespace: "shop", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
}

type syncedOnce struct {
	*sink.Forward // to the backend
	once          atomic.Bool
}

func (s *syncedOnce) Sync(ctx context.Context) error {
	err := s.Forward.Sync(ctx)
	s.once.Store(true)
	return err
}

// A sink around the backend sees its calls: here, that a Sync has been attempted, even if a service failed.
func ExampleForward_once() {
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return errors.New("a service failed") })
	s := &syncedOnce{Forward: sink.NewForward(backend)}
	fmt.Println(s.once.Load())
	fmt.Println(s.Sync(context.Background()))
	fmt.Println(s.once.Load())
	// Output:
	// false
	// a service failed
	// true
}
