package nft

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// lookForDrift checks whether another program has changed the table, which is then compared as a whole: see compare.
func (f *family) lookForDrift() {
	if (f.state == known || f.state == leftovers) && f.dataplane.Drifted(f.key) {
		f.state = suspect
	}
}

// check corrects what another program has changed.
func (f *family) check(ctx context.Context, c *frontend.Changes) (frontend.CheckResult, error) {
	f.lookForDrift()
	if f.state != suspect {
		f.lowerTimeouts(ctx)
		return frontend.CheckResult{}, nil
	}
	began := time.Now()
	changed, err := f.compareAgain(ctx, f.config(c.Node()), c)
	if err != nil {
		if f.state = suspect; ctx.Err() == nil {
			f.countFailure()
		}
		return frontend.CheckResult{}, err
	}
	c.Accept()
	if changed {
		klog.FromContext(ctx).Info("Repaired a table that another program had changed", "table", f.key)
	}
	// On a node where other programs keep changing rulesets, checking takes a tenth of the time at most.
	return frontend.CheckResult{Repaired: changed, Pause: 9 * time.Since(began)}, nil
}
