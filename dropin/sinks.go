package dropin

import (
	"context"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// sinks is the chain of sinks. It removes the rules of other modes only once its own have been applied, so that there
// is no moment without rules when modes are switched.
type sinks struct {
	*sink.TeeSink
	others *others
}

// Sync implements sink.Sink.
func (s *sinks) Sync(ctx context.Context) error {
	err := s.TeeSink.Sync(ctx)
	if sink.FailedFamilies(err) == 0 {
		s.others.afterSync(ctx)
	}
	return err
}

// nodePortAddresses follows the addresses that serve node ports and the health checks of Services (S35). It calls
// changed when they change: the health checks follow at the next Sync. The backend does so itself, and asks for a Sync
// in any case: see OnAddresses.
func (p *proxy) nodePortAddresses(changed func()) (*nodeaddr.Tracker, error) {
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{
		Choice: p.nodePorts,
		Host:   p.machine.host,
		Changed: func(a nodeaddr.Addresses) {
			if a.All != model.BothFamilies { // otherwise the individual addresses do not matter
				changed()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	return tracker, nil
}

// addressSink passes the node to the tracker. It comes before the sinks that use the addresses at Sync.
type addressSink struct {
	*sink.Forward
	tracker *nodeaddr.Tracker
}

// SetNode implements sink.NodeSetter.
func (s addressSink) SetNode(node *model.Node) {
	s.tracker.SetNode(node)
}
