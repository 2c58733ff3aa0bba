package kubeproxy

import (
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// failures records what failed in the last Syncs, and when to retry it.
type failures struct {
	log         klog.Logger
	onPortError func(*sink.PortError)

	families backoff // whole families
	ports    backoff // single service ports
	text     string  // of the last error that was logged
	known    map[portKey]string
}

// portKey names a service port in a family.
type portKey struct {
	port   model.PortName
	family model.Family
}

// backoff decides when to try again. The pause doubles with every attempt.
type backoff struct {
	attempts int       // failed in a row
	at       time.Time // of the next one
}

func (b *backoff) pending() bool { return b.attempts > 0 }

// note takes the outcome of a Sync that ended at end. Syncs for changes that come between a failure and its retry do
// not move the retry, whether they fail or succeed: its time has been logged, and a full attempt follows every failure
// (S46).
func (b *backoff) note(failed, attempt bool, end time.Time, opts Options) {
	switch {
	case !failed && (attempt || !b.pending()):
		*b = backoff{}
	case failed && (attempt || !b.pending()):
		b.attempts++
		b.at = end.Add(opts.pause(b.attempts))
	}
}

// retryAt returns when to try again, or zero. Failed service ports do not hasten the retry of a whole family.
func (f *failures) retryAt() time.Time {
	if f.families.pending() {
		return f.families.at
	}
	return f.ports.at
}

// note takes the outcome of a Sync. attempt is true if the Sync retried in full what had failed before.
func (f *failures) note(err error, attempt bool, end time.Time, opts Options) {
	failed, ports := sink.FailedFamilies(err), sink.PortErrors(err)
	f.families.note(failed != 0, attempt, end, opts)
	f.ports.note(len(ports) > 0, attempt, end, opts)
	f.notePorts(ports, failed, end)
	if failed == 0 {
		f.text = ""
		return
	}
	if text := err.Error(); attempt || text != f.text {
		f.text = text
		f.log.Error(err, "Sync failed; trying again",
			"failures", f.families.attempts, "retryIn", f.families.at.Sub(end))
	}
}

// notePorts logs service ports that failed, each once until its error changes, and those that no longer fail. It leaves
// ports of a family that failed as a whole as they were.
func (f *failures) notePorts(errs []*sink.PortError, failed model.FamilySet, end time.Time) {
	now := make(map[portKey]string, len(errs))
	for _, e := range errs { // there can be several for one service port, of several sinks
		now[portKey{e.Port, e.Family}] += e.Error() + "\n"
	}
	for _, e := range errs {
		if key := (portKey{e.Port, e.Family}); f.known[key] == now[key] {
			continue
		}
		f.log.Error(e.Err, "A service port could not be applied, but everything else was; trying again",
			"servicePort", e.Port, "family", e.Family, "retryIn", f.retryAt().Sub(end))
		if f.onPortError != nil {
			f.onPortError(e)
		}
	}
	for key, text := range f.known {
		if _, still := now[key]; still {
			continue
		}
		if failed.Has(key.family) {
			now[key] = text
			continue
		}
		f.log.Info("A service port is applied again, or was removed", "servicePort", key.port, "family", key.family)
	}
	f.known = now
}

// portsOf returns the number of service ports of a family that failed.
func (f *failures) portsOf(family model.Family) (n int) {
	for key := range f.known {
		if key.family == family {
			n++
		}
	}
	return n
}
