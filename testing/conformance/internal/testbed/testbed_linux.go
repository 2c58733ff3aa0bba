package testbed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// callTimeout bounds every Sync and every call of the factory. A program's Sync bounds each of its waits instead, by
// the program's observed speed.
const callTimeout = 3 * time.Minute

// Testbed is the test network, or a simulation, with at most one running backend at a time.
type Testbed struct {
	Network *network.Network // nil in a simulation
	// Try makes one new connection, asks which server answers, and closes it.
	Try      func(network.Attempt, network.Timeouts) network.Seen
	Factory  backend.Factory
	Host     *osthread.Thread // runs the backend's code; nil in a simulation
	Timeouts Timeouts
	id       string
	// Seed determines the source ports of clients.
	Seed   uint64
	Waived *waivers

	// The running backend.
	Setup     cluster.Setup
	Env       backend.Env
	Sink      sink.Sink         // nil if no backend runs
	end       func()            // cancels the context of the backend
	Described cluster.State     // the state given to the sink
	Services  []cluster.Service // the services of that state
	// Cluster has the objects of that state.
	Cluster *cluster.Cluster
	// Program is set if the backend is a separate program; the sink then represents it.
	Program *Program
}

// New builds the network for a backend, in the IP families of the machine.
func New(f backend.Factory, families []model.Family, seed uint64) (*Testbed, error) {
	p, err := TimeoutsHere()
	if err != nil {
		return nil, err
	}
	n, err := network.New(families, seed)
	if err != nil {
		return nil, err
	}
	return NewOn(n, f, p, seed)
}

// NewOn returns a testbed on a network, which it closes.
func NewOn(n *network.Network, f backend.Factory, p Timeouts, seed uint64) (*Testbed, error) {
	b := &Testbed{Network: n, Try: n.Try, Factory: f, Timeouts: p, id: strings.ToLower(rand.Text()[:12]), Seed: seed,
		Waived: &waivers{}}
	var err error
	if b.Host, err = osthread.Enter(n.Node.FD()); err != nil {
		n.Close()
		return nil, fmt.Errorf("thread in the node's namespace: %w", err)
	}
	return b, nil
}

// Close ends the backend and removes the network.
func (b *Testbed) Close() {
	if b.Sink != nil {
		b.end()
	}
	b.Host.Close()
	if b.Network != nil {
		b.Network.Close()
	}
}

// Start starts a backend, which finds everything that an earlier one left.
func (b *Testbed) Start(ctx context.Context, set cluster.Setup) error {
	ctx, b.end = context.WithCancel(context.WithoutCancel(ctx)) // a backend may outlive a case
	defer time.AfterFunc(callTimeout, b.end).Stop()
	b.Setup = set
	b.Env = set.Env(b.Factory.Families())
	if b.Env.ID = b.id; b.Network != nil {
		b.Env.NetNS = b.Network.Node.File
	}
	err := b.Host.Do(func() (err error) {
		b.Sink, err = b.Factory.New(ctx, b.Env)
		return err
	})
	if err != nil {
		b.end()
		b.Sink = nil
		return fmt.Errorf("start the backend: %w", err)
	}
	if b.Sink == nil {
		b.end()
		return errors.New("start the backend: New returned neither a sink nor an error")
	}
	b.Described = cluster.State{}
	if b.Cluster, err = cluster.New(ctx, set, b.Env.Families, !b.Factory.LacksFeature(backend.ExternalIPs)); err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	return nil
}

// Drop drops the sink, like the end of the process. The dataplane stays as it is.
func (b *Testbed) Drop() error {
	defer b.end()
	old := b.Sink
	b.Sink = nil
	c, ok := old.(io.Closer)
	if !ok {
		return nil
	}
	if err := b.Host.Do(c.Close); err != nil {
		return fmt.Errorf("close the sink: %w", err)
	}
	return nil
}

// Restart drops the backend and starts a new one without any state.
func (b *Testbed) Restart(ctx context.Context) error {
	if err := b.Drop(); err != nil {
		return err
	}
	return b.Start(ctx, b.Setup)
}

// Cleanup drops the backend and removes everything that it put on the node.
func (b *Testbed) Cleanup(ctx context.Context) error {
	if b.Sink != nil {
		if err := b.Drop(); err != nil {
			return err
		}
	}
	if err := b.Hook(ctx, "stop", b.Factory.Stop); err != nil {
		return err
	}
	return b.Hook(ctx, "clean up", b.Factory.Cleanup)
}

// Hook calls a function of the factory, if it is set and a backend was ever started.
func (b *Testbed) Hook(ctx context.Context, what string, f func(context.Context, backend.Env) error) error {
	if f == nil || b.Env.ID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := b.Host.Do(func() error { return f(ctx, b.Env) }); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Describe replaces the services and calls the sink's methods for what changes, without a Sync.
func (b *Testbed) Describe(services ...cluster.Service) error {
	families := cluster.DualStack()
	if b.Program != nil { // a program without a family is meant for clusters without it
		families = b.Program.Families
	}
	objects, err := cluster.Objects(services, families)
	if err != nil {
		return err
	}
	b.Services = services
	return b.describeObjects(objects)
}

func (b *Testbed) describeObjects(objects []metav1.Object) error {
	return b.Host.Do(func() (err error) {
		b.Described, err = b.Cluster.Put(objects, b.Sink)
		if b.Program != nil {
			b.Program.Describe(objects)
		}
		return err
	})
}

// Sync calls the sink's Sync.
func (b *Testbed) Sync(ctx context.Context) error {
	if b.Program == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return b.Host.Do(func() error { return b.Sink.Sync(ctx) })
}

// Resync makes the sink check everything, as kubeproxy.Run does periodically.
func (b *Testbed) Resync(ctx context.Context) error {
	if err := b.ForceResync(); err != nil {
		return err
	}
	if err := b.Sync(ctx); err != nil {
		return fmt.Errorf("sync after ForceResync: %w", err)
	}
	return nil
}

// ForceResync asks the sink not to trust its memory, if it is a [sink.Resyncer].
func (b *Testbed) ForceResync() error {
	return b.Host.Do(func() error {
		sink.NewForward(b.Sink).ForceResync()
		return nil
	})
}

// ResyncFailed does what kubeproxy.Run does before it retries a failed Sync: it asks the sink not to trust its memory
// of what failed, through [sink.FailureResyncer] if the sink implements it.
func (b *Testbed) ResyncFailed() error {
	r, ok := b.Sink.(sink.FailureResyncer)
	if !ok {
		return b.ForceResync()
	}
	return b.Host.Do(func() error {
		r.ResyncFailed()
		return nil
	})
}

// Put replaces all services.
func (b *Testbed) Put(ctx context.Context, services ...cluster.Service) error {
	if err := b.Describe(services...); err != nil {
		return err
	}
	if err := b.Sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// Protocols returns the protocols that can be tried here.
func (b *Testbed) Protocols() []model.Protocol {
	if b.Factory.LacksFeature(backend.SCTP) {
		return []model.Protocol{model.TCP, model.UDP}
	}
	return []model.Protocol{model.TCP, model.UDP, model.SCTP}
}

// Dump returns the ruleset, for messages.
func (b *Testbed) Dump(ctx context.Context) string {
	text, err := b.dumpError(ctx)
	if err != nil {
		return fmt.Sprintf("(cannot dump the ruleset: %v)", err)
	}
	return text
}

func (b *Testbed) dumpError(ctx context.Context) (text string, err error) {
	if b.Factory.Dump == nil {
		return "", errors.New("the factory has no Dump")
	}
	timeout := callTimeout
	if ctx.Err() != nil { // the run is ending
		timeout = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	err = b.Host.Do(func() (err error) {
		text, err = b.Factory.Dump(ctx, b.Env)
		return err
	})
	return text, err
}

// Indent indents a text below a heading.
func Indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
