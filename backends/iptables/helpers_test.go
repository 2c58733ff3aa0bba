package iptables_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// rig is a backend on fakes, with a model that is handed to it.
type rig struct {
	t       testing.TB
	fakes   map[model.Family]*dataplane.Fake
	options iptables.Options
	backend *iptables.Backend
	model   fm.Model
}

// newRig makes a rig that does not look for drift, unless the options say how often it should.
func newRig(t testing.TB, o iptables.Options) *rig {
	r := &rig{t: t, options: o, fakes: map[model.Family]*dataplane.Fake{}}
	for _, f := range model.Families() {
		r.fakes[f] = dataplane.NewFake(f)
		r.options.Dataplanes = append(r.options.Dataplanes, r.fakes[f])
	}
	if o.DriftInterval == 0 {
		r.options.DriftInterval = -1
	}
	if o.Sysctls == "" {
		r.options.Sysctls = sysctl.Root(t.TempDir())
	}
	r.start()
	t.Cleanup(func() { r.backend.Close() })
	return r
}

func (r *rig) start() {
	backend, err := iptables.New(r.t.Context(), r.options)
	require.NoError(r.t, err)
	r.backend = backend
}

// restart is a new process: a new backend that is told everything, on the tables as they are.
func (r *rig) restart() {
	require.NoError(r.t, r.backend.Close())
	r.model.Forget()
	r.start()
}

// set describes model values.
func (r *rig) set(values ...any) {
	r.t.Helper()
	backendtest.Set(r.t, &r.model, values...)
}

func (r *rig) trySync() error {
	_, err := r.model.Flush(r.backend)
	require.NoError(r.t, err)
	for _, fake := range r.fakes {
		fake.ResetBatches()
	}
	r.backend.ResyncFailed() // every Sync after one that failed is its retry
	return r.backend.Sync(r.t.Context())
}

func (r *rig) sync() {
	r.t.Helper()
	require.NoError(r.t, r.trySync())
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
