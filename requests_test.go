package kubeproxy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestASyncComesWhenItIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, requests := newManual(), &sink.Recorder{}, make(chan struct{}, 1)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: time.Minute, ResyncInterval: -1,
			SyncRequests: requests})
		requests <- struct{}{}
		time.Sleep(time.Hour)
		assert.Empty(t, ops(rec), "not before everything is listed")
		src.Synced()
		synctest.Wait()
		assert.Equal(t, []string{"SetNode"}, ops(rec))
		time.Sleep(time.Hour)
		assert.Empty(t, ops(rec), "the first Sync is what was asked for")
		src.Update(set(service("a", "10.96.0.1"))...)
		synctest.Wait()
		assert.Equal(t, []string{"SetService"}, ops(rec))
		requests <- struct{}{}
		requests <- struct{}{}
		time.Sleep(time.Minute - 1)
		assert.Empty(t, ops(rec), "not before the least interval is over")
		time.Sleep(time.Hour)
		assert.Equal(t, []string{""}, ops(rec), "one Sync, and no resync")
		require.NoError(t, stop())
	})
}

// A sink may request a Sync during any of its calls.
func TestASinkMayAskForASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, requests := newManual(), &sink.Recorder{}, make(chan struct{}, 1)
		a := &asking{sink.NewForward(rec), requests}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: a, MinInterval: time.Second, ResyncInterval: -1,
			SyncRequests: requests})
		src.Synced()
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"SetNode", ""}, ops(rec))
		require.NoError(t, stop())
	})
}

type asking struct {
	*sink.Forward
	requests chan<- struct{}
}

func (a *asking) SetNode(n *model.Node) {
	a.requests <- struct{}{}
	a.Forward.SetNode(n)
}
