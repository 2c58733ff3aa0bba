package kubeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Options says what Run connects. Feed and Sink are required; everything else has a default.
type Options struct {
	// Feed is where the node-local state comes from: a [LocalFeed], or one of package remote.
	Feed Feed
	// Sink is where the node-local state goes.
	Sink sink.Sink

	// MinInterval is the minimum time between the end of one Sync and the start of the next (S43). Changes that come in
	// between are applied together; a change after a pause is applied at once. By default the time follows from what
	// the Sync has cost, hand-over included: nine times that, so that Syncs take a tenth of the time, but at least 5 ms
	// and at most 1 s. Negative: none. A sink that is a [sink.Yielder] may ask for more while others read its dataplane,
	// whatever MinInterval is.
	MinInterval time.Duration
	// RetryInterval is the maximum time between a failed Sync and its retry (S43). The first retry comes after 100 ms,
	// or when MinInterval allows if that is later, and the pause doubles with every failed retry. Changes neither wait
	// for the retry nor hasten it: where nothing has failed they are applied at once, see [sink.Sink]. Default 30 s.
	RetryInterval time.Duration
	// ResyncInterval is the time between full resyncs, which repair what others did to the dataplane: Run calls
	// ForceResync, if the sink has it, and then Sync, even if nothing changed. Default 1 h; negative: never.
	ResyncInterval time.Duration
	// SyncRequests, if given, asks for a Sync, not a resync, with each value received, even if nothing has changed in
	// the cluster. It is for sinks that depend on something else as well, such as a filter whose policy changed. The
	// Sync comes as soon as MinInterval and a [sink.Yielder] allow. It reaches the callback of a sink.FullState, too,
	// which is not called for other Syncs without a change; if it fails, so do the Syncs that follow, until one succeeds.
	// Give the channel a buffer of one and send without blocking: one request is as good as many. Do not close it.
	SyncRequests <-chan struct{}
	// Syncer, if given, asks for a Sync in the same way, and waits for it: for programs that have to know when something
	// is applied.
	Syncer *Syncer
	// OnPortError, if given, is called for each service port that a Sync could not apply while it applied everything
	// else. The program can report it, for example by an Event for the Service. It is called once, and again when the
	// error changes, for at most eight service ports of a Service and family at a time, with a log line each; the log
	// counts the others. It is called between Syncs and should return quickly.
	OnPortError func(*sink.PortError)

	// OnReady, if given, is called once, after the first Sync that has applied every family. It does not wait for single
	// service ports that are refused (sink.PortError): these may stay refused for ever. It is called between Syncs and
	// must not block. A program that would rather wait, or go on even if the first Sync failed, uses a Syncer.
	OnReady func()

	// Metrics, if given, is the registry for the metrics of this run: they are registered while Run runs. See the
	// package documentation for the list.
	Metrics prometheus.Registerer
	// Health, if given, is kept up to date while Run runs.
	Health *health.Proxy
}

// withDefaults returns the options with their defaults filled in, and an error that lists everything invalid.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.Feed == nil {
		errs = append(errs, errors.New("no feed"))
	}
	if o.Sink == nil {
		errs = append(errs, errors.New("no sink"))
	}
	if o.RetryInterval < 0 {
		errs = append(errs, fmt.Errorf("retry interval %v is negative", o.RetryInterval))
	}
	o.RetryInterval = cmp.Or(o.RetryInterval, 30*time.Second)
	o.ResyncInterval = cmp.Or(o.ResyncInterval, time.Hour)
	if o.Health == nil {
		o.Health = health.New(0)
	}
	return o, errors.Join(errs...)
}
