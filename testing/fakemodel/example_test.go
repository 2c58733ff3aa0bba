package fakemodel_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// T stands for the *testing.T of a test, which examples do not have.
type T struct{ testing.TB }

func (T) Helper()                           {}
func (T) Context() context.Context          { return context.Background() }
func (T) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

// printer is a backend whose dataplane is the standard output.
type printer struct{ services, endpoints int }

func (p *printer) SetService(*model.Service)        { p.services++ }
func (p *printer) DeleteService(model.ServiceName)  { p.services++ }
func (p *printer) SetEndpoint(*model.Endpoint)      { p.endpoints++ }
func (p *printer) DeleteEndpoint(model.EndpointKey) { p.endpoints++ }

func (p *printer) Sync(context.Context) error {
	fmt.Printf("dataplane: %d services and %d endpoints changed\n", p.services, p.endpoints)
	*p = printer{}
	return nil
}

func Example() {
	t := T{} // in a test: func TestMyBackend(t *testing.T)
	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return &printer{} }})

	web := fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build()
	d.Set(web,
		fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build(),
		fakemodel.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build())
	d.Sync()
	d.Want("SetNode n1",
		"SetService default/web cluster-ips=10.96.0.10",
		"SetEndpoint default/web:http/TCP -> 10.244.1.5:8080 sets=Cluster,Local",
		"SetEndpoint default/web:http/TCP -> 10.244.2.5:8080 sets=Cluster",
		"Sync")

	d.Sync() // no news is no work
	d.Want()

	d.Delete(web)
	d.Restart() // the process was away when the service went
	d.Sync()
	d.Want("Restart", "SetNode n1", "Sync")
	// Output:
	// dataplane: 1 services and 2 endpoints changed
	// dataplane: 0 services and 0 endpoints changed
}

// Cluster objects go through package localstate, which knows what they mean for this node.
func ExampleDriver_Set() {
	t := T{}
	d := fakemodel.NewDriver(t, fakemodel.Options{})
	d.Set(kube.Service("default/web").ClusterIP("10.96.0.10").Build())
	slice := kube.EndpointSlice("default/web").Endpoint("10.244.1.5").OnNode("n1")
	d.Set(slice.Build())
	d.Sync()
	d.Transcript()

	d.Set(slice.Terminating().Endpoint("10.244.2.5").OnNode("n2").Build())
	d.Sync()
	fmt.Println(strings.Join(d.Transcript(), "\n"))
	// Output:
	// DeleteEndpoint default/web/TCP -> 10.244.1.5:8080
	// SetEndpoint default/web/TCP -> 10.244.2.5:8080 sets=Cluster node=n2
	// Sync
}

// A fake dataplane asks Faults whether an operation is to fail.
func ExampleFaults() {
	faults := fakemodel.NewFaults(42, 0.4)
	write := func(rule string) error {
		if err := faults.Next("write " + rule); err != nil {
			return err
		}
		// ... write the rule
		return nil
	}
	for _, rule := range []string{"a", "b", "c", "d"} {
		fmt.Println(write(rule))
	}
	// Output:
	// write a: injected fault (seed 42, operation 1)
	// <nil>
	// write c: injected fault (seed 42, operation 3)
	// write d: injected fault (seed 42, operation 4)
}
