package nft_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// busy refuses to delete chains, as Linux does before 6.2 for a while after the last reference went.
func (r *rig) busy() (after func()) {
	apply := r.fake.FailApply
	r.fake.FailApply = func(tx *dataplane.Transaction) error {
		if strings.Contains(tx.Text(), "delete chain") {
			return &dataplane.OpError{Table: tx.Table, Op: "delete chain", Err: syscall.EBUSY}
		}
		return apply(tx)
	}
	return func() { r.fake.FailApply = apply }
}

func TestWhatCannotBeRemovedYetIsRemovedLater(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	before := r.dump(model.IPv4)
	sticky := model.ServiceName{Namespace: "shop", Name: "sticky"}
	after := r.busy()
	r.Delete(sticky)
	r.Sync() // it does what it should
	assert.NotContains(t, r.dump(model.IPv4), "10.96.1.3 . tcp . 80 comment", "nothing leads there")
	assert.Contains(t, r.dump(model.IPv4), "chain affinity-", "left over")
	r.Sync()
	assert.Empty(t, r.applied, "still busy")

	t.Run("at the next Sync", func(t *testing.T) {
		after()
		r.Sync()
		assert.NotContains(t, r.dump(model.IPv4), "affinity-")
		assert.Len(t, r.applied, 1)
		r.Sync()
		assert.Empty(t, r.applied)
	})
	t.Run("unless it is needed again", func(t *testing.T) {
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		after := r.busy()
		r.Delete(sticky)
		r.Delete(fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build())
		r.Sync()
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		after()
		r.Sync()
		assert.Equal(t, canonical(t, before), canonical(t, r.dump(model.IPv4)))
		assert.NotContains(t, joined(r.commands(model.IPv4)), "delete")
	})
}

func TestARestartRemovesWhatWasLeftOver(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	before := r.dump(model.IPv4)
	after := r.busy()
	r.Restart()
	r.Delete(model.ServiceName{Namespace: "shop", Name: "sticky"})
	r.Sync()
	require.Contains(t, r.dump(model.IPv4), "map endpoints {", "left over")
	require.Contains(t, r.dump(model.IPv4), "map endpoints-2 {")
	after()
	r.Restart()
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	assert.NotRegexp(t, `map endpoints(-2)? \{`, r.dump(model.IPv4))
	assert.Contains(t, r.dump(model.IPv4), "map endpoints-3 {")
	assert.Equal(t, canonical(t, before), canonical(t, r.dump(model.IPv4)))
}

// Elements that are left over are in the way of others with the same key.
func TestSlotsThatAreLeftOverAreUsedAgain(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	web := func(pod string) *model.Endpoint { return fm.Endpoint("default/web:http/TCP", pod+":8080").Build() }
	r.Set(backendtest.Node(), fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(),
		web("10.244.1.5"), web("10.244.2.5"))
	r.Sync()
	apply := r.fake.FailApply
	r.fake.FailApply = func(tx *dataplane.Transaction) error {
		if text := tx.Text(); strings.Contains(text, "delete element") && !strings.Contains(text, "add element") {
			return syscall.EBUSY
		}
		return apply(tx)
	}
	r.Delete(web("10.244.2.5"))
	r.Sync()
	require.Contains(t, r.dump(model.IPv4), "tcp . 80 . 1 : 10.244.2.5 . 8080", "left over")
	r.Set(web("10.244.2.6"))
	r.Sync()
	assert.Contains(t, r.dump(model.IPv4), "tcp . 80 . 1 : 10.244.2.6 . 8080")
	assert.Contains(t, r.dump(model.IPv4), "goto cluster-2")
}
