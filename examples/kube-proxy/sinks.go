package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// sinks are all that is fed. Once the rules are applied for the first time, those of other modes are not needed any
// more: so there is no moment without rules when modes are switched.
type sinks struct {
	*sink.TeeSink
	// afterFirstSync is called after the first Sync that succeeded and, until it has succeeded itself, after a later
	// one again, when cleanUpPause is over. It is nil when that is done.
	afterFirstSync func(context.Context) error
	tried          time.Time // when it was called last
}

// cleanUpPause is as long as the time between full resyncs, so that there is a Sync when it is over.
const cleanUpPause = time.Hour

// Sync implements sink.Sink.
func (s *sinks) Sync(ctx context.Context) error {
	err := s.TeeSink.Sync(ctx)
	failed4, failed6 := sink.FailedFamilies(err)
	if failed4 || failed6 || s.afterFirstSync == nil || !s.tried.IsZero() && time.Since(s.tried) < cleanUpPause {
		return err
	}
	s.tried = time.Now()
	if cleanUp := s.afterFirstSync(ctx); cleanUp == nil {
		s.afterFirstSync = nil
	} else if ctx.Err() == nil {
		klog.FromContext(ctx).Error(cleanUp, "Not everything of earlier modes is cleaned up; trying again",
			"retryIn", cleanUpPause)
	}
	return err
}

// nodePortAddresses follows the addresses on which node ports, and the health checks of Services, are served (S35).
// When they change it calls changed: the health checks follow at the next Sync, the backend on its own.
func nodePortAddresses(c *v1alpha2.KubeProxyConfiguration, m *machine, changed func()) (*nodeaddr.Tracker, error) {
	choice, err := config.NodePortAddresses(c)
	if err != nil {
		return nil, err
	}
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{
		Choice: choice,
		Host:   m.host,
		Changed: func(a nodeaddr.Addresses) {
			if !a.AllIPv4 || !a.AllIPv6 { // else it does not matter which they are
				changed()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	return tracker, nil
}

// addressSink tells the tracker which addresses are the node's own. It comes before what asks for them at Sync.
type addressSink struct {
	*sink.Forward
	tracker *nodeaddr.Tracker
}

// SetNode implements sink.NodeSetter.
func (s addressSink) SetNode(node *model.Node) {
	s.tracker.SetNode(node)
}
