package dropin

import (
	"context"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// others removes what other modes, and Kubernetes' own kube-proxy, have left, and notices if the latter is not gone.
//
// At a start its rules say nothing: they stay when it ends. Rules that have come back after they were removed do.
type others struct {
	// remove removes all of it.
	remove func(context.Context) error
	// find returns what there is of Kubernetes' own kube-proxy.
	find func(context.Context) []string
	// back is called if there is something again after it was removed.
	back func(found string)

	removed bool      // once remove has succeeded
	gone    bool      // once something of Kubernetes' own kube-proxy was removed
	next    time.Time // when to look again
}

const (
	// othersPause is the time between full resyncs, so that there is a Sync after it.
	othersPause = time.Hour
	// comebackPause is when to look after rules of Kubernetes' own kube-proxy were removed for the first time. In mode
	// iptables it restores them within half a minute, in mode nftables with the next change.
	comebackPause = time.Minute
)

// afterSync is called after each Sync that succeeded.
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
