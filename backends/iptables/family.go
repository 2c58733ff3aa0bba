package iptables

import (
	"context"
	"fmt"
	"sync/atomic"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is the backend in one IP family. It applies its plan to the tables, and knows what is in them.
type family struct {
	backend   *Backend
	dataplane dp.Interface
	features  dp.Features
	metrics   *metrics
	*plan     // what is wanted

	counts     atomic.Bool // rules count packets; metrics ask at any time
	noCounting bool        // the kernel's counters or the match for them are missing, until a full Sync has tried again

	// What is known about the tables.
	state      state
	generation uint64 // of the tables, as they were left
	failed     error  // error of the last Sync, apart from those of service ports that are left out
}

// state is how much is known about the tables of a family. The package documentation has the transitions.
type state uint8

const (
	unknown    state = iota // nothing, at first and after a failed Sync: the next one reads and compares
	unrepaired              // nothing, after a failed repair: the next check, or Sync, reads and compares
	suspect                 // as chains say, unless another program has changed something: the next check reads
	known                   // they are as chains say, as far as iptables can print them
)

// isTrusted reports whether writing only the changes is enough.
func (s state) isTrusted() bool { return s >= suspect }

func newFamily(b *Backend, d dp.Interface, g *shared.Group) *family {
	features := d.Features()
	return &family{backend: b, dataplane: d, features: features, plan: newPlan(),
		metrics: newMetrics(g, features.Family)}
}

// apply applies the changes to the tables. Service ports whose rules are refused are left out.
func (f *family) apply(ctx context.Context, c *frontend.Changes) error {
	if c.Full() {
		f.state = unknown
		if f.failed == nil { // otherwise the next attempt would find them one by one again
			for _, table := range f.tables {
				clear(table.inUse)
			}
		}
		o := &f.backend.options
		if o.LocalhostNodePorts && o.NodePortAddresses.Loopback() && c.Family() == model.IPv4 {
			f.backend.kernel.allowLocalnet(ctx)
		}
	}
	before, changes := f.config, c.Difference()
	f.config = newConfig(f.features, f.backend, c.Node())
	f.config.counts = f.counts.Load()
	try := f.failed == nil || c.Retry() // a failed family is left alone until its retry
	f.retryRefused(ctx, changes, try)
	f.update(before, c, changes)
	if try {
		if c.Full() && f.noCounting {
			f.retryCounting(ctx)
		}
		f.failed = f.unlessInUse(ctx, f.write(ctx))
		if f.failed != nil && ctx.Err() == nil {
			f.failed = f.leaveOut(ctx, c, f.failed)
		}
	}
	c.Accept() // chains know what is not in the tables yet
	err := f.failed
	if ctx.Err() != nil {
		f.failed = nil // cancelled, not refused
	}
	if err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	return nil
}
