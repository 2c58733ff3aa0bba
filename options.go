package kubeproxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Options says what Run connects. Source and Sink are needed; everything else has a default.
type Options struct {
	// Source is where cluster objects come from.
	Source watch.Source
	// Sink is where the node-local state goes.
	Sink sink.Sink
	// State configures the node-local state: the name of this node, IP families, local-traffic detection ...
	State localstate.Options

	// MinInterval is the least time between the end of one Sync and the start of the next (S43). What changes
	// meanwhile is put in force together; a change after a pause is put in force at once. Default 1 s; negative: none.
	MinInterval time.Duration
	// RetryInterval is the most time between a Sync that failed and the next (S43). The first retry comes after
	// MinInterval, or 100 ms if that is longer, and the pause doubles with every failure. A change does not wait for the
	// retry. Default 30 s.
	RetryInterval time.Duration
	// ResyncInterval is the time between full resyncs: Sync is called although nothing changed, with ForceResync
	// before it if the sink has that, to repair what others did to the dataplane. Default 1 h; negative: never.
	ResyncInterval time.Duration
	// Resync, if given, asks for a full resync whenever something can be received from it, for what neither the cluster nor
	// the sink knows: the host's addresses changed, or a person wants it. It comes at least MinInterval after the last Sync.
	Resync <-chan struct{}

	// Metrics, if given, gets the metrics while Run runs. Names and labels are kube-proxy's; see the package
	// documentation for the list.
	Metrics prometheus.Registerer
	// Health, if given, is kept up to date while Run runs.
	Health *Health
}

const (
	defaultMinInterval    = time.Second
	defaultRetryInterval  = 30 * time.Second
	defaultResyncInterval = time.Hour
	firstRetry            = 100 * time.Millisecond
)

// withDefaults returns the options with their defaults filled in, and everything that is wrong with them.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.Source == nil {
		errs = append(errs, errors.New("no source"))
	}
	if o.Sink == nil {
		errs = append(errs, errors.New("no sink"))
	}
	if o.RetryInterval < 0 {
		errs = append(errs, fmt.Errorf("retry interval %v is negative", o.RetryInterval))
	}
	setDefault := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	setDefault(&o.MinInterval, defaultMinInterval)
	setDefault(&o.RetryInterval, defaultRetryInterval)
	setDefault(&o.ResyncInterval, defaultResyncInterval)
	o.MinInterval = max(o.MinInterval, 0)
	return o, errors.Join(errs...)
}
