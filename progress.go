package kubeproxy

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// progress derives the health and the metrics of a run from what happens in it:
//
//	changed, queued      objects arrived and changed the state
//	flushed              the loop handed over what differs
//	synced or unchanged  Sync returned, or did not have to be called
//
// changed, queued and flushed are called under the lock that guards the state.
type progress struct {
	health  *health.Proxy
	metrics *metrics
	waves   []*familyWave
}

// familyWave is what the sink has been given for one family since the last Sync that applied that family.
type familyWave struct {
	family    model.Family
	concerned bool
	triggers  []time.Time
}

// maxTriggers bounds the trigger times that are kept while Syncs fail.
const maxTriggers = 10000

func newProgress(families []model.Family, proxy *health.Proxy) *progress {
	p := &progress{health: proxy, metrics: newMetrics()}
	for _, f := range families {
		p.waves = append(p.waves, &familyWave{family: f})
	}
	return p
}

// changed counts an object that State.Apply reports as changed.
func (p *progress) changed(object any) {
	switch object.(type) {
	case *corev1.Service:
		p.metrics.services.total.Inc()
	case *discoveryv1.EndpointSlice:
		p.metrics.endpoints.total.Inc()
	}
}

// queued records what is waiting to be handed over, after each change of the state.
func (p *progress) queued(pending localstate.Pending) {
	now := time.Now()
	for _, w := range p.waves {
		if pending.Families.Has(w.family) {
			p.health.Queued(w.family, now)
			p.metrics.lastQueued.WithLabelValues(w.family.String()).Set(seconds(now))
		}
	}
	p.metrics.setPending(pending)
}

// flushed records what was handed to the sink.
func (p *progress) flushed(changes localstate.Changes, noLocal localstate.NoLocalEndpoints) {
	p.metrics.setPending(localstate.Pending{})
	for _, w := range p.waves {
		w.concerned = w.concerned || changes.Families.Has(w.family)
		w.triggers = append(w.triggers, *changes.Triggers.At(w.family)...)
		w.triggers = w.triggers[:min(len(w.triggers), maxTriggers)]
		p.health.Flushed(w.family)
		p.metrics.setNoLocal(w.family, noLocal)
	}
}

// unchanged records that nothing differed for the sink, so that Sync is not called.
func (p *progress) unchanged() {
	for _, w := range p.waves {
		if !w.concerned {
			p.health.Unchanged(w.family)
		}
	}
}

// synced records the outcome of a Sync. full means that it was the first one or a resync, even one only of what had
// failed. A Sync that failed for one family counts as successful for the other; one that failed only for single service
// ports counts as successful.
func (p *progress) synced(full bool, start, end time.Time, err error) {
	failed := sink.FailedFamilies(err)
	for _, w := range p.waves {
		if failed.Has(w.family) {
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
