package fakemodel

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Options configures a Driver. The zero value is usable: it only records.
type Options struct {
	// NewSink creates the sink to feed: the backend, with a dataplane from outside the function. It is called by
	// NewDriver and at every Restart. Default: none.
	NewSink func() sink.Sink
	// EverySync: Sync and TrySync call the sink even when nothing is new, for tests of what a backend does then.
	EverySync bool
	// State configures the node-local state, where the driver is fed with cluster objects. NodeName is "n1" by default.
	State localstate.Options
	// Cluster is what holds for all nodes.
	Cluster localstate.ClusterOptions
}

// Driver feeds a sink wave by wave and records the calls. It does what package kubeproxy's Run does, in the test's
// goroutine: it hands over what changed, calls Sync if anything changed, and after a failed Sync asks for a resync of
// what failed and calls Sync again.
//
// It takes either model values or cluster objects, not both. Errors end the test.
type Driver struct {
	tb   testing.TB
	opts Options

	source   source
	recorder *sink.Recorder
	sink     sink.Sink
	lines    []string
	failed   error // of the last Sync
	injected bool  // by FailNext
	failures []error
}

// NewDriver returns a driver that has not made any call to its sink yet.
func NewDriver(tb testing.TB, opts Options) *Driver {
	d := &Driver{tb: tb, opts: opts}
	d.opts.State.NodeName = cmp.Or(opts.State.NodeName, "n1")
	d.start()
	return d
}

func (d *Driver) start() {
	d.recorder, d.failed, d.injected = &sink.Recorder{}, nil, false
	d.sink = sink.Tee()
	if d.opts.NewSink != nil {
		d.sink = d.opts.NewSink()
	}
}

// Set creates or replaces objects: a *model.Node, *model.Service or *model.Endpoint; or a Service, EndpointSlice, Node
// or ServiceCIDR of the Kubernetes API. The sink gets nothing before Sync.
func (d *Driver) Set(objects ...any) {
	d.tb.Helper()
	for _, object := range objects {
		d.check(d.sourceOf(object).set(object))
	}
}

// Delete deletes objects. It takes what Set takes, except for a *model.Node, and also a model.ServiceName or a
// model.EndpointKey. Only the name of an object counts. Deleting a model service deletes its endpoints.
func (d *Driver) Delete(objects ...any) {
	d.tb.Helper()
	for _, object := range objects {
		d.check(d.sourceOf(object).delete(object))
	}
}

func (d *Driver) check(err error) {
	d.tb.Helper()
	if err != nil {
		d.tb.Fatalf("fakemodel: %v", err)
	}
}

// sourceOf returns the driver's source if the object is of its kind. The first object decides.
func (d *Driver) sourceOf(object any) source {
	d.tb.Helper()
	if d.source == nil {
		source, err := newSource(object, d.opts)
		d.check(err)
		d.source = source
		d.check(source.start(d.tb.Context()))
	}
	if !d.source.takes(object) {
		d.tb.Fatalf("fakemodel: a driver that is fed with %s cannot take a %T", d.source, object)
	}
	return d.source
}

// Sync applies what was set and deleted. A Sync that fails ends the test.
func (d *Driver) Sync() {
	d.tb.Helper()
	if err := d.TrySync(); err != nil {
		d.tb.Fatalf("fakemodel: Sync: %v", err)
	}
}

// TrySync is Sync for tests in which it may fail: it returns the sink's error. The next one tries again.
//
// If nothing changed the sink is not called, except the first time, and after a failed Sync.
func (d *Driver) TrySync() error {
	d.tb.Helper()
	switch changed := d.flush(); {
	case d.failed != nil:
		d.recorder.ResyncFailed()
		d.resyncFailed()
	case !changed && !d.opts.EverySync: // the first time the node is always new
		return nil
	}
	return d.sync(d.tb.Context())
}

// Wave hands over what was set and deleted, and calls Sync with ctx, whether or not anything changed. Unlike TrySync it
// does not ask for a resync of what failed before: Run makes such waves before a retry is due.
func (d *Driver) Wave(ctx context.Context) error {
	d.tb.Helper()
	d.flush()
	return d.sync(ctx)
}

// FailNext makes the next Syncs, as many as there are errors, fail with these errors before they reach the sink. To
// make a fake dataplane fail, or to fail at random, see [Faults].
func (d *Driver) FailNext(errs ...error) { d.failures = append(d.failures, errs...) }

// Resync asks for a full resync, as Run does periodically: ForceResync and Sync, whether or not anything changed.
func (d *Driver) Resync() {
	d.tb.Helper()
	d.flush()
	sink.Tee(d.recorder, d.sink).ForceResync()
	if err := d.sync(d.tb.Context()); err != nil {
		d.tb.Fatalf("fakemodel: Sync: %v", err)
	}
}

// flush hands over what was set and deleted, and reports whether anything was.
func (d *Driver) flush() (changed bool) {
	d.tb.Helper()
	if d.source == nil { // an empty cluster is complete, too
		d.source = &modelSource{}
	}
	changed, err := d.source.flush(sink.Tee(d.recorder, d.sink))
	d.check(err)
	return changed
}

func (d *Driver) sync(ctx context.Context) error {
	d.tb.Helper()
	var err error
	if d.injected = len(d.failures) > 0; d.injected {
		err, d.failures = d.failures[0], d.failures[1:]
	} else {
		err = d.sink.Sync(ctx)
	}
	d.recorder.FailNext(err)
	_ = d.recorder.Sync(ctx) // returns err
	d.failed = err
	for _, wave := range d.recorder.TakeWaves() {
		d.lines = append(d.lines, wave.Lines()...)
	}
	if violations := d.recorder.Violations(); len(violations) > 0 {
		d.tb.Fatalf("fakemodel: the contract of sink.Sink was not kept:\n%s", strings.Join(violations, "\n"))
	}
	return err
}

// resyncFailed asks the sink to resync what failed in the last Sync, as Run does. The sink does not know of failures by
// FailNext.
func (d *Driver) resyncFailed() {
	failed, _ := d.sink.(sink.FailureResyncer)
	all, _ := d.sink.(sink.Resyncer)
	switch {
	case failed != nil && !d.injected:
		failed.ResyncFailed()
	case all != nil && sink.FailedFamilies(d.failed) != 0:
		all.ForceResync()
	}
}

// Restart simulates a new process, with a new sink from Options.NewSink and a new node-local state. The driver keeps
// what was set, and the next Sync hands everything to the new sink; the content of the dataplane is up to NewSink.
func (d *Driver) Restart() {
	d.tb.Helper()
	if d.source != nil {
		d.check(d.source.start(d.tb.Context()))
	}
	d.lines = append(d.lines, "Restart")
	d.start()
}

// Transcript returns the calls to the sink since the last Transcript or Want, one line each: as [sink.Call.String]
// writes them, "Sync" with its error if it failed, and "Restart".
func (d *Driver) Transcript() []string {
	lines := d.lines
	d.lines = nil
	return lines
}

// Want ends the test unless the Transcript is these lines, in this order. A line may leave out its end, after a whole
// word: "SetService default/web" matches any version of the service.
func (d *Driver) Want(lines ...string) {
	d.tb.Helper()
	got := d.Transcript()
	want := slices.Clone(lines)
	for i := range want {
		if i < len(got) && abbreviates(want[i], got[i]) {
			want[i] = got[i] // so that a failure shows what really differs
		}
	}
	require.Equal(d.tb, strings.Join(want, "\n"), strings.Join(got, "\n"),
		"what the sink was told, and in which order, is not what was wanted")
}

func abbreviates(short, line string) bool {
	rest, ok := strings.CutPrefix(line, short)
	return ok && (rest == "" || rest[0] == ' ' || rest[0] == ';')
}

// State returns the state that the sink has been given, whether or not it has been applied, for package oracle.
func (d *Driver) State() oracle.State {
	services, endpoints := d.recorder.Services(), d.recorder.Endpoints()
	return oracle.Collect(d.recorder.Node(), maps.Values(services), maps.Values(endpoints))
}
