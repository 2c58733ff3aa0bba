package kubeproxy

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// ProgressOptions configures a [Progress]. The zero value is usable.
type ProgressOptions struct {
	// Families are the families that the state computes. Default: both.
	Families []model.Family
	// Health, if given, is kept up to date.
	Health *health.Proxy
	// Metrics, if given, is the registry for the metrics: they are registered until Close. See the package
	// documentation for the list.
	Metrics prometheus.Registerer
}

// Progress derives health and metrics from what happens in a loop that feeds a sink. [Run] has one. Programs with their
// own loop call its methods in this order:
//
//	Changed, Queued      objects came, and localstate.State took them
//	Flushed              State.Flush handed over what differs
//	Synced or Unchanged  Sync returned, or did not have to be called
//
// Changed and Queued may be called from any goroutine, under the lock that guards the State; Flushed too, under the
// same lock. Synced and Unchanged come from the goroutine that calls Flushed.
type Progress struct {
	health     *health.Proxy
	metrics    *metrics
	unregister func()
	waves      []*familyWave
}

// familyWave is what the sink has been given for one family since the last Sync that applied that family.
type familyWave struct {
	family    model.Family
	concerned bool
	triggers  []time.Time
}

// maxTriggers bounds the trigger times that are kept while Syncs fail.
const maxTriggers = 10000

// NewProgress returns a Progress, and registers its metrics until Close.
func NewProgress(opts ProgressOptions) (*Progress, error) {
	p := &Progress{health: opts.Health, metrics: newMetrics()}
	if p.health == nil {
		p.health = health.New(health.Options{})
	}
	for _, f := range (localstate.Options{Families: opts.Families}).EnabledFamilies() {
		p.waves = append(p.waves, &familyWave{family: f})
	}
	var err error
	if p.unregister, err = p.metrics.register(opts.Metrics); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return p, nil
}

// Close unregisters the metrics.
func (p *Progress) Close() { p.unregister() }

// Changed counts an object that State.Apply reports as changed.
func (p *Progress) Changed(object any) {
	switch object.(type) {
	case *corev1.Service:
		p.metrics.services.total.Inc()
	case *discoveryv1.EndpointSlice:
		p.metrics.endpoints.total.Inc()
	}
}

// Queued records what is waiting to be handed over. Call it after each change of the state.
func (p *Progress) Queued(pending localstate.Pending) {
	now := time.Now()
	for _, w := range p.waves {
		if pending.Concerns(w.family) {
			p.health.Queued(w.family, now)
			p.metrics.lastQueued.WithLabelValues(w.family.String()).Set(seconds(now))
		}
	}
	p.metrics.setPending(pending)
}

// Flushed records what was handed to the sink.
func (p *Progress) Flushed(changes localstate.Changes, noLocal localstate.NoLocalEndpoints) {
	p.metrics.setPending(localstate.Pending{})
	for _, w := range p.waves {
		w.concerned = w.concerned || changes.Concerns(w.family)
		w.triggers = append(w.triggers, changes.Triggers(w.family)...)
		w.triggers = w.triggers[:min(len(w.triggers), maxTriggers)]
		p.health.Flushed(w.family)
		p.metrics.setNoLocal(w.family, noLocal)
	}
}

// Unchanged records that nothing differed for the sink, so that Sync is not called.
func (p *Progress) Unchanged() {
	for _, w := range p.waves {
		if !w.concerned {
			p.health.Unchanged(w.family)
		}
	}
}

// Synced records the outcome of a Sync. full means that it was the first one or a resync, even one only of what had
// failed. A Sync that failed for one family counts as successful for the other; one that failed only for single service
// ports counts as successful.
func (p *Progress) Synced(full bool, start, end time.Time, err error) {
	failed4, failed6 := sink.FailedFamilies(err)
	for _, w := range p.waves {
		if w.family == model.IPv4 && failed4 || w.family == model.IPv6 && failed6 {
			w.concerned = true
			continue
		}
		if !full && !w.concerned {
			p.health.Unchanged(w.family)
			continue
		}
		p.health.Applied(w.family, end)
		p.metrics.synced(w.family, full, start, end, w.triggers)
		w.concerned, w.triggers = false, nil
	}
}
