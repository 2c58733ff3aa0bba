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
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// Options configures a Driver. The zero value only records.
type Options struct {
	// NewSink creates the sink to feed: the backend, on a dataplane created outside the function. NewDriver and Restart
	// call it. Default: none.
	NewSink func() sink.Sink
	// EverySync: Sync and TrySync call the sink even if nothing changed.
	EverySync bool
	// State configures the node-local state if the driver is fed with cluster objects. NodeName is "n1" by default.
	State localstate.Options
	// Cluster has the options shared by all nodes.
	Cluster localstate.ClusterOptions
}

// Driver feeds a sink in waves and records the calls. It does what kubeproxy.Run does, in the test's goroutine: it
// makes the calls for what changed, calls Sync if anything changed, and after a failed Sync calls ResyncFailed and Sync
// again.
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

// NewDriver returns a driver. It does not call the sink yet.
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
// or ServiceCIDR of the Kubernetes API. The sink is not called before Sync.
func (d *Driver) Set(objects ...any) {
	d.tb.Helper()
	for _, object := range objects {
		d.check(d.sourceOf(object).set(object))
	}
}

// Delete deletes objects by name. It takes what Set takes, except a *model.Node, and also a model.ServiceName or a
// model.EndpointKey. Deleting a model service deletes its endpoints.
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

// sourceOf returns the driver's source if it accepts the object. The first object determines the source.
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

// Sync applies what was set and deleted. If it fails, it ends the test.
func (d *Driver) Sync() {
	d.tb.Helper()
	if err := d.TrySync(); err != nil {
		d.tb.Fatalf("fakemodel: Sync: %v", err)
	}
}

// TrySync is like Sync, but returns the sink's error. The next call tries again.
//
// If nothing changed, the sink is called only the first time and after a failed Sync.
func (d *Driver) TrySync() error {
	d.tb.Helper()
	switch changed := d.flush(); {
	case d.failed != nil:
		d.recorder.ResyncFailed()
		d.resyncFailed()
	case !changed && !d.opts.EverySync: // the node is always new at first
		return nil
	}
	return d.sync(d.tb.Context())
}

// Wave makes the calls for what was set and deleted, and calls Sync with ctx, whether or not anything changed. Unlike
// TrySync it does not call ResyncFailed after a failure: Run makes such waves before a retry is due.
func (d *Driver) Wave(ctx context.Context) error {
	d.tb.Helper()
	d.flush()
	return d.sync(ctx)
}

// FailNext makes the next Syncs, one per error, fail with these errors before they reach the sink. To make a fake
// dataplane fail, see [Faults].
func (d *Driver) FailNext(errs ...error) { d.failures = append(d.failures, errs...) }

// Resync requests a full resync, as Run does periodically: it calls ForceResync and Sync even if nothing changed.
func (d *Driver) Resync() {
	d.tb.Helper()
	d.flush()
	sink.Tee(d.recorder, d.sink).ForceResync()
	if err := d.sync(d.tb.Context()); err != nil {
		d.tb.Fatalf("fakemodel: Sync: %v", err)
	}
}

// flush makes the calls for what was set and deleted, and reports whether there were any.
func (d *Driver) flush() (changed bool) {
	d.tb.Helper()
	if d.source == nil { // an empty cluster is complete too
		d.source = newModelSource()
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

// resyncFailed asks the sink to resync what failed in the last Sync, as Run does. The sink does not know of the
// failures that FailNext injects.
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
// its objects, and the next Sync gives all of them to the new sink. NewSink determines the content of the dataplane.
func (d *Driver) Restart() {
	d.tb.Helper()
	if d.source != nil {
		d.check(d.source.start(d.tb.Context()))
	}
	d.lines = append(d.lines, "Restart")
	d.start()
}

// Transcript returns the calls to the sink since the last Transcript or Want, one line each: [sink.Call.String], "Sync"
// with its error if it failed, and "Restart".
func (d *Driver) Transcript() []string {
	lines := d.lines
	d.lines = nil
	return lines
}

// Want ends the test unless the Transcript consists of these lines, in this order. A line may be cut off after a whole
// word: "SetService default/web" matches any version of the service.
func (d *Driver) Want(lines ...string) {
	d.tb.Helper()
	got := d.Transcript()
	want := slices.Clone(lines)
	for i := range want {
		if i < len(got) && abbreviates(want[i], got[i]) {
			want[i] = got[i] // so that a failure shows only real differences
		}
	}
	require.Equal(d.tb, strings.Join(want, "\n"), strings.Join(got, "\n"),
		"the calls to the sink, or their order, are not the expected ones")
}

func abbreviates(short, line string) bool {
	rest, ok := strings.CutPrefix(line, short)
	return ok && (rest == "" || rest[0] == ' ' || rest[0] == ';')
}

// State returns the state that the sink has been given, applied or not, for package oracle.
func (d *Driver) State() oracle.State {
	services, endpoints := d.recorder.Services(), d.recorder.Endpoints()
	return oracle.Collect(d.recorder.Node(), maps.Values(services), maps.Values(endpoints))
}
