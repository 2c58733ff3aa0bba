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

// callTimeout bounds every call of the factory and every Sync, but those of a program: it bounds each of its waits, by
// what the program has shown of its speed.
const callTimeout = 3 * time.Minute

// session is one backend at a time on the test network, or in a simulation.
type session struct {
	n *network.Network // nil in a simulation
	// try makes one new connection, asks who is there, and closes it.
	try      func(network.Attempt, network.Patience) network.Seen
	factory  Factory
	host     *osthread.Thread // where the backend's code runs; nil in a simulation
	patience patience
	id       string
	// seed determines the source ports of clients.
	seed   uint64
	waived *waivers

	// The running backend.
	setup    setup
	env      Env
	sink     sink.Sink // nil: none
	end      func()    // ends the context that it was started with
	told     state     // what it was told
	services []service // where that comes from
	// cluster is where that comes from.
	cluster *cluster
	// program is what the sink stands for, if the backend is a program of its own.
	program *program
}

// newSession builds the network for a backend, in the IP families that the machine has.
func newSession(f Factory, families []model.Family, seed uint64) (*session, error) {
	p, err := patienceHere()
	if err != nil {
		return nil, err
	}
	n, err := network.New(families, seed)
	if err != nil {
		return nil, err
	}
	return newSessionOn(n, f, p, seed)
}

func newSessionOn(n *network.Network, f Factory, p patience, seed uint64) (*session, error) {
	s := &session{n: n, try: n.Try, factory: f, patience: p, id: strings.ToLower(rand.Text()[:12]), seed: seed,
		waived: &waivers{}}
	var err error
	if s.host, err = osthread.Enter(n.Node.FD()); err != nil {
		n.Close()
		return nil, fmt.Errorf("thread in the node's namespace: %w", err)
	}
	return s, nil
}

func (s *session) close() {
	if s.sink != nil {
		s.end()
	}
	s.host.Close()
	if s.n != nil {
		s.n.Close()
	}
}

// start starts a backend. What an earlier one left behind still exists.
func (s *session) start(ctx context.Context, set setup) error {
	ctx, s.end = context.WithCancel(context.WithoutCancel(ctx)) // a backend may serve several cases
	defer time.AfterFunc(callTimeout, s.end).Stop()
	s.setup = set
	s.env = set.env(s.factory.families())
	if s.env.ID = s.id; s.n != nil {
		s.env.NetNS = s.n.Node.File
	}
	err := s.host.Do(func() (err error) {
		s.sink, err = s.factory.New(ctx, s.env)
		return err
	})
	if err != nil {
		s.end()
		s.sink = nil
		return fmt.Errorf("start the backend: %w", err)
	}
	if s.sink == nil {
		s.end()
		return errors.New("start the backend: New returned neither a sink nor an error")
	}
	s.told = state{}
	if s.cluster, err = newCluster(ctx, set, s.env.Families); err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	return nil
}

// drop drops the sink, as the end of the process would. What is applied stays.
func (s *session) drop() error {
	defer s.end()
	old := s.sink
	s.sink = nil
	c, ok := old.(io.Closer)
	if !ok {
		return nil
	}
	if err := s.host.Do(c.Close); err != nil {
		return fmt.Errorf("close the sink: %w", err)
	}
	return nil
}

// restart drops the backend and starts a new one, which knows nothing yet.
func (s *session) restart(ctx context.Context) error {
	if err := s.drop(); err != nil {
		return err
	}
	return s.start(ctx, s.setup)
}

// cleanup drops the backend and removes everything that it put into the node.
func (s *session) cleanup(ctx context.Context) error {
	if s.sink != nil {
		if err := s.drop(); err != nil {
			return err
		}
	}
	if err := s.hook(ctx, "stop", s.factory.Stop); err != nil {
		return err
	}
	return s.hook(ctx, "clean up", s.factory.Cleanup)
}

// hook calls a function of the factory, if it exists and a backend was ever started.
func (s *session) hook(ctx context.Context, what string, f func(context.Context, Env) error) error {
	if f == nil || s.env.ID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.host.Do(func() error { return f(ctx, s.env) }); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// describe tells the sink what changes when services replace those before, without a Sync.
func (s *session) describe(services ...service) error {
	families := dualStack()
	if s.program != nil { // what lacks a family is meant for clusters without it
		families = s.program.families
	}
	objects, err := objectsOf(services, families)
	if err != nil {
		return err
	}
	s.services = services
	return s.describeObjects(objects)
}

func (s *session) describeObjects(objects []metav1.Object) error {
	return s.host.Do(func() (err error) {
		s.told, err = s.cluster.put(objects, s.sink)
		if s.program != nil {
			s.program.describe(objects)
		}
		return err
	})
}

// sync calls Sync, once.
func (s *session) sync(ctx context.Context) error {
	if s.program == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return s.host.Do(func() error { return s.sink.Sync(ctx) })
}

// resync has the sink check everything, as a runner does periodically.
func (s *session) resync(ctx context.Context) error {
	if err := s.forceResync(); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync after ForceResync: %w", err)
	}
	return nil
}

// forceResync asks the sink not to trust its memory, if it is a [sink.Resyncer].
func (s *session) forceResync() error {
	return s.host.Do(func() error {
		sink.NewForward(s.sink).ForceResync()
		return nil
	})
}

// resyncFailed asks the sink, as a runner does before it retries a failed Sync, not to trust its memory of what failed:
// by [sink.FailureResyncer] if the sink has that.
func (s *session) resyncFailed() error {
	r, ok := s.sink.(sink.FailureResyncer)
	if !ok {
		return s.forceResync()
	}
	return s.host.Do(func() error {
		r.ResyncFailed()
		return nil
	})
}

// put applies services, and nothing else.
func (s *session) put(ctx context.Context, services ...service) error {
	if err := s.describe(services...); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// protocols are those that can be tried here.
func (s *session) protocols() []model.Protocol {
	if s.factory.lacks(SCTP) {
		return []model.Protocol{model.TCP, model.UDP}
	}
	return []model.Protocol{model.TCP, model.UDP, model.SCTP}
}

// dump returns the ruleset, for messages.
func (s *session) dump(ctx context.Context) string {
	text, err := s.dumpError(ctx)
	if err != nil {
		return fmt.Sprintf("(the ruleset cannot be had: %v)", err)
	}
	return text
}

func (s *session) dumpError(ctx context.Context) (text string, err error) {
	if s.factory.Dump == nil {
		return "", errors.New("the factory has no Dump")
	}
	timeout := callTimeout
	if ctx.Err() != nil { // the run is at its end
		timeout = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	err = s.host.Do(func() (err error) {
		text, err = s.factory.Dump(ctx, s.env)
		return err
	})
	return text, err
}

// indent puts a text under a heading.
func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
