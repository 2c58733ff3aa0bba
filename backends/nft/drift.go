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

// repair corrects what another program changed.
func (f *family) repair(ctx context.Context, c *frontend.Changes) (frontend.Look, error) {
	f.lookForDrift()
	if f.state != suspect {
		f.lowerTimeouts(ctx)
		return frontend.Look{}, nil
	}
	began := time.Now()
	changed, err := f.compareAgain(ctx, f.config(c.Node()), c)
	if err != nil {
		if f.state = suspect; ctx.Err() == nil {
			f.countFailure()
		}
		return frontend.Look{}, err
	}
	c.Accept()
	if changed {
		klog.FromContext(ctx).Info("Repaired a table that another program had changed", "table", f.key)
	}
	// On a node where other programs keep changing rulesets, checking takes a tenth of the time at most.
	return frontend.Look{Repaired: changed, Rest: 9 * time.Since(began)}, nil
}
