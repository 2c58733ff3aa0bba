package diffstore_test

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/diffstore"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// device is a dataplane that holds a text for each service port.
type device struct{ err error }

func (d *device) put(key, text string) error {
	fmt.Printf("put %s %q: %v\n", key, text, d.err)
	return d.err
}

func (d *device) delete(key string) error {
	fmt.Printf("delete %s: %v\n", key, d.err)
	return d.err
}

// program returns the callback of a backend that describes everything and applies what differs.
func program(dev *device) func(context.Context, *sink.Snapshot) error {
	store := diffstore.NewBufferStore[string]()
	return func(_ context.Context, s *sink.Snapshot) error {
		store.Reset()
		for entry := range s.Services() {
			for _, port := range entry.Service.Ports {
				route := port.Routes.IPv4.ClusterIP
				text := store.Get(entry.Service.PortName(port).String())
				for e := range entry.SetEndpoints(port.Name, port.Protocol, model.IPv4, route.Endpoints) {
					fmt.Fprintln(text, e.Target)
				}
			}
		}
		store.Done()
		var errs []error
		for e := range store.Changed() {
			if err := dev.put(e.Key(), e.Value().String()); err != nil {
				store.NotApplied(e.Key())
				errs = append(errs, err)
			}
		}
		for e := range store.Deleted() {
			if err := dev.delete(e.Key()); err != nil {
				store.NotApplied(e.Key())
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...) // after an error, it is called again later
	}
}

// A backend that describes its full state, like KPNG's backends.
func Example_fullState() {
	dev := &device{}
	backend := sink.NewFullState(program(dev))
	backend.SetService(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	backend.SetEndpoint(fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build())
	fmt.Println("Sync:", backend.Sync(context.Background()))

	dev.err = errors.New("busy")
	backend.SetEndpoint(fakemodel.Endpoint("default/web:http/TCP", "10.244.1.6:8080").Build())
	fmt.Println("Sync:", backend.Sync(context.Background()))

	dev.err = nil
	fmt.Println("Sync:", backend.Sync(context.Background()))
	// Output:
	// put default/web:http/TCP "10.244.1.5:8080\n": <nil>
	// Sync: <nil>
	// put default/web:http/TCP "10.244.1.5:8080\n10.244.1.6:8080\n": busy
	// Sync: busy
	// put default/web:http/TCP "10.244.1.5:8080\n10.244.1.6:8080\n": <nil>
	// Sync: <nil>
}
