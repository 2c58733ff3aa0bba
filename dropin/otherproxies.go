package dropin

import (
	"context"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// others removes the rules of other modes and of Kubernetes' own kube-proxy, and detects whether kube-proxy still runs.
//
// Rules found at the start do not prove that: kube-proxy leaves them when it exits. Rules that reappear after their
// removal do.
type others struct {
	// remove removes the rules of other modes and of kube-proxy.
	remove func(context.Context) error
	// find returns the names of kube-proxy's rules.
	find func(context.Context) []string
	// back is called if kube-proxy's rules have reappeared.
	back func(found string)

	removed bool      // remove has succeeded
	gone    bool      // rules of kube-proxy were removed
	next    time.Time // time of the next check
}

const (
	// othersPause is as long as the default interval of full resyncs, so that a Sync follows a check soon.
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
	if err := o.remove(ctx); err == nil {
		if len(found) > 0 && !o.gone {
			pause = comebackPause
		}
		o.removed, o.gone = true, o.gone || len(found) > 0
	} else if ctx.Err() == nil {
		log.Error(err, "Could not clean up everything that earlier modes left; trying again", "retryIn", othersPause)
	}
	o.next = time.Now().Add(pause)
}
