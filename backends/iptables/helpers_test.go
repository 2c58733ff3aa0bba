package iptables_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// rig is a backend on fakes, with the driver that feeds it.
type rig struct {
	*fm.Driver
	t       testing.TB
	fakes   map[model.Family]*dataplane.Fake
	options iptables.Options
	backend *iptables.Backend
}

// newRig makes a rig that does not check for drift, unless the options say how often it should.
func newRig(t testing.TB, o iptables.Options) *rig {
	r := &rig{t: t, options: o, fakes: map[model.Family]*dataplane.Fake{}}
	for _, f := range model.Families() {
		r.fakes[f] = dataplane.NewFake(f)
		r.options.Dataplanes = append(r.options.Dataplanes, r.fakes[f])
	}
	if !o.HasDriftInterval() {
		r.options = r.options.CheckingEvery(-1)
	}
	if o.Sysctls == "" {
		r.options.Sysctls = sysctl.Root(t.TempDir())
	}
	return r.start()
}

func (r *rig) start() *rig {
	r.t.Cleanup(func() {
		r.backend.Close()
		for _, fake := range r.fakes {
			replay(r.t, fake)
		}
	})
	r.Driver = fm.NewDriver(r.t, fm.Options{NewSink: r.newBackend, EverySync: true})
	return r
}

// newBackend is a new process, on the tables as they are.
func (r *rig) newBackend() sink.Sink {
	if r.backend != nil {
		require.NoError(r.t, r.backend.Close())
	}
	backend, err := iptables.New(r.t.Context(), r.options)
	require.NoError(r.t, err)
	r.backend = backend
	return backend
}

func (r *rig) TrySync() error {
	r.t.Helper()
	r.resetBatches()
	return r.Driver.TrySync()
}

func (r *rig) Sync() {
	r.t.Helper()
	r.resetBatches()
	r.Driver.Sync()
}

func (r *rig) resetBatches() {
	for _, fake := range r.fakes {
		fake.ResetBatches()
	}
}

// batches returns what the last Sync did in one family, as iptables-restore reads it.
func (r *rig) batches(f model.Family) string {
	var b strings.Builder
	for _, batch := range r.fakes[f].Batches() {
		b.WriteString(batch.String())
	}
	return b.String()
}

func (r *rig) dump(f model.Family) string { return r.fakes[f].Dump() }
