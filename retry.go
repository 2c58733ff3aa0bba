package kubeproxy

import (
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// failures records what failed in the last Syncs, when to retry it, and what was logged about it. It knows about
// service ports only what the errors say, which any sink may return; the backend knows what the dataplane has of such a
// port.
type failures struct {
	log         klog.Logger
	onPortError func(*sink.PortError)

	families backoff // whole families
	ports    backoff // single service ports
	text     string  // of the last error that was logged, until nothing fails any more
	logged   time.Time
	known    map[portKey]portFailure
	counts   map[model.Family]int // of known

	// The error of the last Sync, and what it contains.
	last    error
	failed  model.FamilySet
	refused bool // service ports
}

// portFailure is why a service port failed.
type portFailure struct {
	text string
	only *sink.PortError // if there is one error; one that stays the same costs no text
}

// portKey names a service port in a family.
type portKey struct {
	port   model.PortName
	family model.Family
}

// firstRetry is the pause after a first failure, unless MinInterval is longer.
const firstRetry = 100 * time.Millisecond

// retryAfter returns the time until the next attempt after the given number of failed ones.
func (o Options) retryAfter(attempts int) time.Duration {
	pause := max(o.MinInterval, firstRetry)
	for i := 1; i < attempts && pause < o.RetryInterval; i++ {
		pause *= 2
	}
	return min(pause, max(o.RetryInterval, o.MinInterval))
}

// backoff decides when to try again. The pause doubles with every attempt.
type backoff struct {
	attempts int       // failed in a row
	at       time.Time // of the next one
}

func (b *backoff) pending() bool { return b.attempts > 0 }

// note records the outcome of a Sync that ended at end. Syncs for changes between a failure and its retry do not move
// the retry, whether they fail or succeed: its time has been logged, and a full attempt follows every failure (S46).
func (b *backoff) note(failed, attempt bool, end time.Time, opts Options) {
	switch {
	case !failed && (attempt || !b.pending()):
		*b = backoff{}
	case failed && (attempt || !b.pending()):
		b.attempts++
		b.at = end.Add(opts.retryAfter(b.attempts))
	}
}

// retryAt returns when to try again, or zero. Failed service ports do not hasten the retry of a whole family.
func (f *failures) retryAt() time.Time {
	if f.families.pending() {
		return f.families.at
	}
	return f.ports.at
}

// note records the outcome of a Sync. attempt is true if the Sync retried in full what had failed before. An error that
// is the same value as last time costs nothing, however many service ports it names.
func (f *failures) note(err error, attempt bool, end time.Time, opts Options) {
	isNew := !syncing.SameError(err, f.last)
	var ports []*sink.PortError
	if isNew {
		ports = sink.PortErrors(err)
		f.last, f.failed, f.refused = err, sink.FailedFamilies(err), len(ports) > 0
	}
	f.families.note(f.failed != 0, attempt, end, opts)
	f.ports.note(f.refused, attempt, end, opts)
	if isNew {
		f.notePorts(ports, f.failed, end)
	}
	switch {
	case f.failed == 0 && !f.families.pending(): // otherwise an intermittent failure would be logged each time
		f.text = ""
	case f.failed != 0 && (isNew || attempt):
		f.logFailure(err, attempt, end)
	}
}

// logPause is the shortest time between log lines about Syncs that fail before the retry, each for a different reason.
const logPause = time.Second

// logFailure logs why a Sync failed. It always does so after an attempt.
func (f *failures) logFailure(err error, attempt bool, end time.Time) {
	text := err.Error()
	if !attempt && (text == f.text || end.Sub(f.logged) < logPause) {
		return
	}
	f.text, f.logged = text, end
	f.log.Error(err, "Sync failed; trying again",
		"failures", f.families.attempts, "retryIn", f.families.at.Sub(end))
}

// maxPortsNamed is how many service ports of a service and family are named in the log, and to OnPortError, when they
// fail, or no longer fail, in the same Sync: a service may have 20,000.
const maxPortsNamed = 8

// portsLogged counts the service ports of each service and family.
type portsLogged map[serviceKey]int

// serviceKey names a service in a family.
type serviceKey struct {
	service model.ServiceName
	family  model.Family
}

// names reports whether another service port is to be named, and counts it.
func (l portsLogged) names(port model.PortName, family model.Family) bool {
	k := serviceKey{port.Service, family}
	l[k]++
	return l[k] <= maxPortsNamed
}

// unnamed calls report for each service and family with more than maxPortsNamed ports, with the number of the rest.
func (l portsLogged) unnamed(report func(service model.ServiceName, family model.Family, ports int)) {
	for k, n := range l {
		if n > maxPortsNamed {
			report(k.service, k.family, n-maxPortsNamed)
		}
	}
}

// notePorts logs service ports that failed, each once until its error changes, and those that no longer fail. It leaves
// the record of a family that failed as a whole unchanged.
func (f *failures) notePorts(errs []*sink.PortError, failed model.FamilySet, end time.Time) {
	now := make(map[portKey]portFailure, len(errs))
	for _, e := range errs {
		key := portKey{e.Port, e.Family}
		next, more := now[key] // of several sinks
		switch before := f.known[key]; {
		case more:
			next = portFailure{text: next.text + e.Error() + "\n"}
		case before.only == e:
			next = before
		default:
			next = portFailure{e.Error() + "\n", e}
		}
		now[key] = next
	}
	fails, again := portsLogged{}, portsLogged{}
	for _, e := range errs {
		if key := (portKey{e.Port, e.Family}); f.known[key].text == now[key].text || !fails.names(e.Port, e.Family) {
			continue
		}
		f.log.Error(e.Err, "A service port could not be applied, but everything else was; trying again",
			"servicePort", e.Port, "family", e.Family, "retryIn", f.retryAt().Sub(end))
		if f.onPortError != nil {
			f.onPortError(e)
		}
	}
	for key, before := range f.known {
		if _, still := now[key]; still {
			continue
		}
		if failed.Has(key.family) {
			now[key] = before
			continue
		}
		if again.names(key.port, key.family) {
			f.log.Info("A service port is applied again, or was removed", "servicePort", key.port, "family", key.family)
		}
	}
	fails.unnamed(func(service model.ServiceName, family model.Family, ports int) {
		f.log.Error(nil, "More service ports of a Service could not be applied; trying again", "service", service,
			"family", family, "servicePorts", ports)
	})
	again.unnamed(func(service model.ServiceName, family model.Family, ports int) {
		f.log.Info("More service ports of a Service are applied again, or were removed", "service", service,
			"family", family, "servicePorts", ports)
	})
	f.known, f.counts = now, map[model.Family]int{}
	for key := range now {
		f.counts[key.family]++
	}
}
