package dropin

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// others removes the rules of other modes and of Kubernetes' own kube-proxy, and detects whether kube-proxy still runs.
//
// Rules found at the start do not prove that: kube-proxy leaves them when it exits. Rules that reappear after their
// removal do.
type others struct {
	// remove removes the rules of other modes and of kube-proxy. See onlyInUse for its error.
	remove func(context.Context) error
	// find returns the names of kube-proxy's rules.
	find func(context.Context) []string
	// back is called if kube-proxy's rules have reappeared.
	back func(found string)

	removed bool      // remove has succeeded, apart from what is in use
	gone    bool      // rules of kube-proxy were removed
	said    string    // what remove left, as logged last
	next    time.Time // time of the next check
}

const (
	// othersPause is as long as the default interval of full resyncs, so that a Sync follows soon after a check is due.
	othersPause = time.Hour
	// comebackPause is the delay of the check after rules of Kubernetes' own kube-proxy were first removed. In mode
	// iptables it restores them within half a minute, in mode nftables with the next change.
	comebackPause = time.Minute
)

// afterSync is called after each successful Sync.
func (o *others) afterSync(ctx context.Context) {
	log := klog.FromContext(ctx)
	if time.Now().Before(o.next) {
		return
	}
	found := o.find(ctx)
	if o.removed && len(found) == 0 {
		o.next = time.Now().Add(othersPause)
		return
	}
	switch names := strings.Join(found, ", "); {
	case len(found) > 0 && o.gone:
		o.back(names)
	case len(found) > 0:
		log.Info("Removing rules of Kubernetes' own kube-proxy, which may be left over; if it still runs, end it",
			"found", names)
	}
	pause := othersPause
	err := o.remove(ctx)
	if onlyInUse(err) {
		if len(found) > 0 && !o.gone {
			pause = comebackPause
		}
		o.removed, o.gone = true, o.gone || len(found) > 0
	}
	if ctx.Err() == nil {
		o.say(ctx, err)
	}
	o.next = time.Now().Add(pause)
}

// say logs what a clean-up left, unless it was the same the last time.
func (o *others) say(ctx context.Context, err error) {
	if err == nil {
		o.said = ""
		return
	}
	if err.Error() == o.said {
		return
	}
	o.said = err.Error()
	if onlyInUse(err) {
		logInUse(ctx, err)
		return
	}
	klog.FromContext(ctx).Error(err, "Could not clean up everything that earlier modes left; trying again",
		"retryIn", othersPause)
}

func logInUse(ctx context.Context, err error) {
	klog.FromContext(ctx).Info("Chains that are no longer needed were emptied, but not deleted: other chains jump to them",
		"reason", err)
}

// onlyInUse reports whether a clean-up has left nothing but chains to which others jump: they are empty, and a retry
// would not help.
func onlyInUse(err error) bool {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself: every error has to be one
	case nil, *dataplane.InUseError:
		return true
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !onlyInUse(err) })
	case interface{ Unwrap() error }:
		return e.Unwrap() != nil && onlyInUse(e.Unwrap())
	}
	return false
}
