package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// brainOptions returns the options for the brain that --server names. It returns an error if the configuration asks for
// something that only the brain can do.
func (s *settings) brainOptions() (remote.Options, error) {
	if !s.gates.Enabled(config.AllowServiceExternalIPs) {
		return remote.Options{}, errors.New("featureGates: with --server," +
			" AllowServiceExternalIPs=false is the brain's to know: its --service-external-ips=false")
	}
	return s.server.Options()
}

// fromBrain returns the options of a proxy whose state a brain computes. It waits until a brain can be reached.
func (p *proxy) fromBrain(ctx context.Context) (kubeproxy.Options, error) {
	families, missing := p.mode.families(ctx, p.machine)
	// The request to the brain hardly depends on the IPs of this node.
	state, _, err := config.StateOptions(p.KubeProxyConfiguration, p.nodeName, unknownNode(families))
	if err != nil {
		return kubeproxy.Options{}, err
	}
	feed, err := p.feed(state)
	if err != nil {
		return kubeproxy.Options{}, err
	}
	klog.FromContext(ctx).Info("Asking a brain for the state of this node", "node", p.nodeName,
		"servers", p.brain.Targets)
	node, err := feed.Node(ctx)
	if err != nil {
		return kubeproxy.Options{}, err
	}
	ips := node.IPs
	if len(ips) == 0 {
		if ips, err = waitForIPs(ctx, p.nodeName, func(ctx context.Context) ([]netip.Addr, error) {
			node, err := feed.Node(ctx)
			if err != nil {
				return nil, err
			}
			return node.IPs, nil
		}); err != nil {
			return kubeproxy.Options{}, err
		}
	}
	opts, err := p.withNode(ctx, ips, families, missing)
	if err != nil {
		return opts, err
	}
	if !slices.Equal(opts.State.EnabledFamilies(), state.EnabledFamilies()) {
		if feed, err = p.feed(opts.State); err != nil {
			return opts, err
		}
	}
	opts.Feed, opts.State = feed, localstate.Options{Families: opts.State.Families}
	return opts, nil
}

// unknownNode is a node of which only the IP families are known.
func unknownNode(families []model.Family) config.NodeIPs {
	n := config.NodeIPs{Primary: model.IPv4, Families: families}
	if len(families) == 1 {
		n.Primary = families[0]
	}
	return n
}

// feed returns the feed of this node's state from the brain.
func (p *proxy) feed(state localstate.Options) (*remote.Feed, error) {
	opts := p.brain
	opts.State, opts.Health = state, p.health
	return remote.NewFeed(opts)
}
