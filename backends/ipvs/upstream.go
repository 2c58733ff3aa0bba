package ipvs

import (
	"context"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// upstreamLink is the dummy interface of upstream kube-proxy.
const upstreamLink = "kube-ipvs0"

// CleanUpUpstream deletes what the mode ipvs of upstream kube-proxy has left in IPVS: virtual servers at addresses of
// its interface kube-ipvs0, which only kube-proxy uses, and at the node's addresses in the range of node ports; and the
// interface. upstream is a dataplane with kube-ipvs0 as its dummy interface. Virtual servers that a [Backend] has taken
// over stay, and so do those in ExcludeCIDRs, and the interface if it is the Backend's own: of its options o only
// ExcludeCIDRs and Link matter. Call it after the Backend's first Sync: then services are never interrupted. It does
// not delete chains and ipsets.
func CleanUpUpstream(ctx context.Context, upstream Dataplane, o Options, nodeIPs []netip.Addr) error {
	deleteLink := upstream.DeleteLink
	if o.Link == upstreamLink {
		deleteLink = func(context.Context) error { return nil }
	}
	own := map[netip.Addr]bool{}
	for _, f := range model.Families() {
		addrs, err := upstream.Addresses(ctx, f)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			own[a] = true
		}
	}
	if len(own) == 0 {
		return deleteLink(ctx)
	}
	servers, err := upstream.Servers(ctx)
	if err != nil {
		return err
	}
	var errs failures.List
	for _, s := range servers {
		nodePort := slices.Contains(nodeIPs, s.Addr) && s.Port >= 30000 && s.Port <= 32767
		if s.Mark != 0 || s.Flags&dp.Owned != 0 || !own[s.Addr] && !nodePort || o.excludes(s.Addr) {
			continue
		}
		errs.Add(upstream.DeleteServer(ctx, s.ServerKey))
	}
	errs.Add(deleteLink(ctx))
	return errs.Err()
}

// UpstreamDataplane opens the kernel with the dummy interface of upstream kube-proxy, for [CleanUpUpstream]. It returns
// nil where there is no IPVS.
func UpstreamDataplane(ctx context.Context) (Dataplane, error) {
	if !dp.IsLoaded() {
		return nil, nil
	}
	k, err := dp.NewKernel(ctx, upstreamLink)
	if err != nil {
		return nil, err
	}
	return k, nil
}
