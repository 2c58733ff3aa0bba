package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// callTimeout bounds every Sync and every call of the factory. A program's Sync bounds each of its waits instead, by
// the program's observed speed.
const callTimeout = 3 * time.Minute

// testbed is the test network, or a simulation, with at most one running backend at a time.
type testbed struct {
	n *network.Network // nil in a simulation
	// try makes one new connection, asks which server answers, and closes it.
	try      func(network.Attempt, network.Timeouts) network.Seen
	factory  Factory
	host     *osthread.Thread // runs the backend's code; nil in a simulation
	timeouts timeouts
	id       string
	// seed determines the source ports of clients.
	seed   uint64
	waived *waivers

	// The running backend.
	setup     setup
	env       Env
	sink      sink.Sink // nil if no backend runs
	end       func()    // cancels the context of the backend
	described state     // the state given to the sink
	services  []service // the services of that state
	// cluster has the objects of that state.
	cluster *cluster
	// program is set if the backend is a separate program; the sink then represents it.
	program *program
}

// newTestbed builds the network for a backend, in the IP families of the machine.
func newTestbed(f Factory, families []model.Family, seed uint64) (*testbed, error) {
	p, err := timeoutsHere()
	if err != nil {
		return nil, err
	}
	n, err := network.New(families, seed)
	if err != nil {
		return nil, err
	}
	return newTestbedOn(n, f, p, seed)
}

func newTestbedOn(n *network.Network, f Factory, p timeouts, seed uint64) (*testbed, error) {
	b := &testbed{n: n, try: n.Try, factory: f, timeouts: p, id: strings.ToLower(rand.Text()[:12]), seed: seed,
		waived: &waivers{}}
	var err error
	if b.host, err = osthread.Enter(n.Node.FD()); err != nil {
		n.Close()
		return nil, fmt.Errorf("thread in the node's namespace: %w", err)
	}
	return b, nil
}

func (b *testbed) close() {
	if b.sink != nil {
		b.end()
	}
	b.host.Close()
	if b.n != nil {
		b.n.Close()
	}
}

// start starts a backend, which finds everything that an earlier one left.
func (b *testbed) start(ctx context.Context, set setup) error {
	ctx, b.end = context.WithCancel(context.WithoutCancel(ctx)) // a backend may outlive a case
	defer time.AfterFunc(callTimeout, b.end).Stop()
	b.setup = set
	b.env = set.env(b.factory.families())
	if b.env.ID = b.id; b.n != nil {
		b.env.NetNS = b.n.Node.File
	}
	err := b.host.Do(func() (err error) {
		b.sink, err = b.factory.New(ctx, b.env)
		return err
	})
	if err != nil {
		b.end()
		b.sink = nil
		return fmt.Errorf("start the backend: %w", err)
	}
	if b.sink == nil {
		b.end()
		return errors.New("start the backend: New returned neither a sink nor an error")
	}
	b.described = state{}
	if b.cluster, err = newCluster(ctx, set, b.env.Families, !b.factory.lacks(ExternalIPs)); err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	return nil
}

// drop drops the sink, like the end of the process. The dataplane stays as it is.
func (b *testbed) drop() error {
	defer b.end()
	old := b.sink
	b.sink = nil
	c, ok := old.(io.Closer)
	if !ok {
		return nil
	}
	if err := b.host.Do(c.Close); err != nil {
		return fmt.Errorf("close the sink: %w", err)
	}
	return nil
}

// restart drops the backend and starts a new one without any state.
func (b *testbed) restart(ctx context.Context) error {
	if err := b.drop(); err != nil {
		return err
	}
	return b.start(ctx, b.setup)
}

// cleanup drops the backend and removes everything that it put on the node.
func (b *testbed) cleanup(ctx context.Context) error {
	if b.sink != nil {
		if err := b.drop(); err != nil {
			return err
		}
	}
	if err := b.hook(ctx, "stop", b.factory.Stop); err != nil {
		return err
	}
	return b.hook(ctx, "clean up", b.factory.Cleanup)
}

// hook calls a function of the factory, if it is set and a backend was ever started.
func (b *testbed) hook(ctx context.Context, what string, f func(context.Context, Env) error) error {
	if f == nil || b.env.ID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := b.host.Do(func() error { return f(ctx, b.env) }); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// describe replaces the services and calls the sink's methods for what changes, without a Sync.
func (b *testbed) describe(services ...service) error {
	families := dualStack()
	if b.program != nil { // a program without a family is meant for clusters without it
		families = b.program.families
	}
	objects, err := objectsOf(services, families)
	if err != nil {
		return err
	}
	b.services = services
	return b.describeObjects(objects)
}

func (b *testbed) describeObjects(objects []metav1.Object) error {
	return b.host.Do(func() (err error) {
		b.described, err = b.cluster.put(objects, b.sink)
		if b.program != nil {
			b.program.describe(objects)
		}
		return err
	})
}

func (b *testbed) sync(ctx context.Context) error {
	if b.program == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return b.host.Do(func() error { return b.sink.Sync(ctx) })
}

// resync makes the sink check everything, as kubeproxy.Run does periodically.
func (b *testbed) resync(ctx context.Context) error {
	if err := b.forceResync(); err != nil {
		return err
	}
	if err := b.sync(ctx); err != nil {
		return fmt.Errorf("sync after ForceResync: %w", err)
	}
	return nil
}

// forceResync asks the sink not to trust its memory, if it is a [sink.Resyncer].
func (b *testbed) forceResync() error {
	return b.host.Do(func() error {
		sink.NewForward(b.sink).ForceResync()
		return nil
	})
}

// resyncFailed does what kubeproxy.Run does before it retries a failed Sync: it asks the sink not to trust its memory
// of what failed, through [sink.FailureResyncer] if the sink implements it.
func (b *testbed) resyncFailed() error {
	r, ok := b.sink.(sink.FailureResyncer)
	if !ok {
		return b.forceResync()
	}
	return b.host.Do(func() error {
		r.ResyncFailed()
		return nil
	})
}

// put replaces all services.
func (b *testbed) put(ctx context.Context, services ...service) error {
	if err := b.describe(services...); err != nil {
		return err
	}
	if err := b.sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// protocols returns the protocols that can be tried here.
func (b *testbed) protocols() []model.Protocol {
	if b.factory.lacks(SCTP) {
		return []model.Protocol{model.TCP, model.UDP}
	}
	return []model.Protocol{model.TCP, model.UDP, model.SCTP}
}

// dump returns the ruleset, for messages.
func (b *testbed) dump(ctx context.Context) string {
	text, err := b.dumpError(ctx)
	if err != nil {
		return fmt.Sprintf("(cannot dump the ruleset: %v)", err)
	}
	return text
}

func (b *testbed) dumpError(ctx context.Context) (text string, err error) {
	if b.factory.Dump == nil {
		return "", errors.New("the factory has no Dump")
	}
	timeout := callTimeout
	if ctx.Err() != nil { // the run is ending
		timeout = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	err = b.host.Do(func() (err error) {
		text, err = b.factory.Dump(ctx, b.env)
		return err
	})
	return text, err
}

// indent indents a text below a heading.
func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
