package kubeproxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Options says what Run connects. Sink and one of Source and Feed are needed; everything else has a default.
type Options struct {
	// Source is where cluster objects come from.
	Source watch.Source
	// Feed is where the node-local state comes from if it is computed elsewhere. Only Families of State is used then.
	Feed Feed
	// Sink is where the node-local state goes.
	Sink sink.Sink
	// State configures the node-local state: the name of this node, IP families, local-traffic detection ...
	// ServiceProxyName is taken from the source if the source has one; a different one here is an error.
	State localstate.Options

	// MinInterval is the minimum time between the end of one Sync and the start of the next (S43). Changes that come in
	// between are applied together; a change after a pause is applied at once. Default 1 s; negative: none.
	MinInterval time.Duration
	// RetryInterval is the maximum time between a failed Sync and its retry (S43). The first retry comes after
	// MinInterval, or 100 ms if that is longer, and the pause doubles with every failed retry. Changes neither wait for
	// the retry nor hasten it: where nothing has failed they are applied at once, see [sink.Sink]. Default 30 s.
	RetryInterval time.Duration
	// ResyncInterval is the time between full resyncs, which repair what others did to the dataplane: Run calls
	// ForceResync, if the sink has it, and then Sync, even if nothing changed. Default 1 h; negative: never.
	ResyncInterval time.Duration
	// NodeCIDRTimeout is how long to wait for the node's podCIDRs where State.DetectLocal.NodeCIDR needs them: nothing
	// is applied before they are known (S48), Health shows that phase, and Run fails when the time is up. Default 5
	// min; negative: forever.
	NodeCIDRTimeout time.Duration

	// OnPortError, if given, is called for each service port that a Sync could not apply while it applied everything
	// else. The program can report it, for example by an Event for the Service. It is called once, and again when the
	// error changes; errors are logged in any case. It is called between Syncs and should return quickly.
	OnPortError func(*sink.PortError)

	// Metrics, if given, is the registry for the metrics of this run: they are registered while Run runs. Names and
	// labels are kube-proxy's; see the package documentation for the list.
	Metrics prometheus.Registerer
	// Health, if given, is kept up to date while Run runs.
	Health *health.Proxy
}

const (
	defaultMinInterval    = time.Second
	defaultRetryInterval  = 30 * time.Second
	defaultResyncInterval = time.Hour
	defaultNodeCIDRWait   = 5 * time.Minute
	firstRetry            = 100 * time.Millisecond
)

// withDefaults returns the options with their defaults filled in, and an error that lists everything invalid.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	switch {
	case o.Source == nil && o.Feed == nil:
		errs = append(errs, errors.New("no source"))
	case o.Source != nil && o.Feed != nil:
		errs = append(errs, errors.New("both a source and a feed"))
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
	setDefault(&o.NodeCIDRTimeout, defaultNodeCIDRWait)
	o.MinInterval = max(o.MinInterval, 0)
	if o.Health == nil {
		o.Health = health.New(health.Options{})
	}
	return o, errors.Join(errs...)
}

// pause returns the time until the next attempt after the given number of failed ones.
func (o Options) pause(attempts int) time.Duration {
	pause := max(o.MinInterval, firstRetry)
	for i := 1; i < attempts && pause < o.RetryInterval; i++ {
		pause *= 2
	}
	return min(pause, max(o.RetryInterval, o.MinInterval))
}
