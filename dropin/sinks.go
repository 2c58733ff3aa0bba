package dropin

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// sinks is the chain of sinks. It removes the rules of other modes only after its own have been applied, so that a
// switch of modes never leaves the node without rules.
type sinks struct {
	*sink.TeeSink
	others *others
	// setGCPercent sets GOGC. It is nil after the first Sync, and without Config.OwnProcess.
	setGCPercent func(percent int)
}

// Sync implements sink.Sink. The first one needs the most memory, for the rules of the whole cluster in addition to its
// state.
func (s *sinks) Sync(ctx context.Context) error {
	if set := s.setGCPercent; set != nil {
		set(firstGCPercent)
		defer set(gcPercent)
		s.setGCPercent = nil
	}
	err := s.TeeSink.Sync(ctx)
	if sink.FailedFamilies(err) == 0 {
		s.others.afterSync(ctx)
	}
	return err
}

// follower is a backend that follows the addresses of the host that serve node ports, and repairs its rules.
type follower interface {
	// OnAddresses sets the function that is called when the addresses have changed, and OnRepair the one that is called
	// when rules that others had removed have been restored.
	OnAddresses(changed func())
	OnRepair(repaired func(model.Family))
	NodePortAddresses() nodeaddr.Addresses
}

// hostAddresses tracks addresses of the host.
type hostAddresses struct {
	nodePorts *nodeaddr.Tracker // those that serve node ports, and the health checks of Services (S35)
	all       *nodeaddr.Tracker // nil if all serve node ports, or if they are not known
}

// trackAddresses returns the addresses of the host. It calls changed when they change: the health checks follow at the
// next Sync. The backend tracks node ports too, and requests a Sync: see OnAddresses.
func (p *proxy) trackAddresses(ctx context.Context, changed func()) (*hostAddresses, error) {
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{
		Choice: p.nodePorts,
		Host:   p.machine.host,
		Changed: func(a nodeaddr.Addresses) {
			if a.All != model.BothFamilies { // otherwise individual addresses do not matter
				changed()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	h := &hostAddresses{nodePorts: tracker}
	if tracker.Addresses().All == model.BothFamilies {
		return h, nil
	}
	h.all, err = nodeaddr.NewTracker(nodeaddr.Options{Host: p.machine.local,
		Changed: func(nodeaddr.Addresses) { changed() }})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Health checks of Services are not served at VIPs")
	}
	return h, nil
}

// All returns all addresses of the host, or none if they do not matter.
func (h *hostAddresses) All() nodeaddr.Addresses {
	if h.all == nil {
		return nodeaddr.Addresses{}
	}
	return h.all.Addresses()
}

// run follows the addresses until ctx ends.
func (h *hostAddresses) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, tracker := range []*nodeaddr.Tracker{h.nodePorts, h.all} {
		if tracker != nil {
			wg.Go(func() { _ = tracker.Run(ctx) }) // its error is always nil
		}
	}
}

// addressSink passes the node to the tracker. It precedes the sinks that use the addresses in Sync.
type addressSink struct {
	*sink.Forward
	tracker *nodeaddr.Tracker
}

// SetNode implements sink.NodeSetter.
func (s addressSink) SetNode(node *model.Node) {
	s.tracker.SetNode(node)
}
