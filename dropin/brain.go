package dropin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// checkBrain returns an error if the configuration requires something that only the brain can do.
func (s *settings) checkBrain() error {
	if !s.gates.Enabled(config.AllowServiceExternalIPs) {
		return errors.New("featureGates: with --server," +
			" AllowServiceExternalIPs=false is set on the brain: --service-external-ips=false")
	}
	return nil
}

// fromBrain returns the feed of the state that a brain computes. It waits until it has reached a brain.
func (p *proxy) fromBrain(ctx context.Context) (kubeproxy.Feed, error) {
	families, missing := p.mode.families(ctx, p.machine)
	// The request to the brain needs only the families of this node's IPs.
	state, _, _, err := config.StateOptions(p.KubeProxyConfiguration, p.nodeName, unknownNode(families))
	if err != nil {
		return nil, err
	}
	feed, err := p.brainFeed(state)
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).Info("Getting the state of this node from a brain", "node", p.nodeName,
		"servers", p.Brain.Targets)
	node, err := feed.Node(ctx)
	if err != nil {
		return nil, err
	}
	p.health.SetDisconnected(time.Time{})
	ips := node.IPs
	if len(ips) == 0 {
		if ips, err = waitForIPs(ctx, p.nodeName, func(ctx context.Context, unknown func()) ([]netip.Addr, error) {
			node, err := feed.Node(ctx)
			if err != nil {
				return nil, err
			}
			if len(node.IPs) == 0 {
				unknown()
			}
			return node.IPs, nil
		}); err != nil {
			return nil, err
		}
	}
	known, _, err := p.withNode(ctx, ips, families, missing)
	if err != nil || slices.Equal(known.EnabledFamilies(), state.EnabledFamilies()) {
		return feed, err
	}
	if state.Families = known.Families; !reflect.DeepEqual(known, state) { // a nodeIPOverride may have lost a family
		return p.brainFeed(known)
	}
	return feed, feed.SetFamilies(ctx, known.Families)
}

// unknownNode returns a node's IPs of which only the families are known.
func unknownNode(families []model.Family) config.NodeIPs {
	n := config.NodeIPs{Primary: model.IPv4, Families: families}
	if len(families) == 1 {
		n.Primary = families[0]
	}
	return n
}

// brainFeed returns the feed of a state from the brain.
func (p *proxy) brainFeed(state localstate.Options) (*remote.Feed, error) {
	opts := *p.Brain
	opts.State = state
	if opts.Dial == nil {
		opts.Dial = p.machine.reached.dial
	}
	tell := opts.NodeVIPs
	opts.NodeVIPs = func(list []netip.Addr, known bool) {
		p.machine.reached.setNodes(list, known)
		if tell != nil {
			tell(slices.Clone(list), known)
		}
	}
	feed, err := remote.NewFeed(opts)
	if err != nil {
		return nil, fmt.Errorf("brain: %w", err)
	}
	return feed, nil
}
