package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// DeleteUDP implements [Table], with a separate dump for each selection. If the kernel rejects or ignores filters, this
// and all later calls dump all flows.
func (k *Kernel) DeleteUDP(
	ctx context.Context, family model.Family, only []Selection, stale func(Flow) bool,
) (deleted int, err error) {
	return k.deleteWith(ctx, family, only, udpFilter, stale)
}

// deleteWith is DeleteUDP with the function that converts a selection to a filter.
func (k *Kernel) deleteWith(
	ctx context.Context, family model.Family, only []Selection, filter func(Selection) func(*nfnetlink.Builder),
	stale func(Flow) bool,
) (deleted int, err error) {
	p, err := newKernelPass(ctx, k.NetNS, family, stale)
	if err != nil {
		return 0, err
	}
	defer p.close()
	only = filterable(family, only)
	for i := 0; i < len(only) && err == nil && !p.unfiltered && !k.cannotFilter.Load(); i++ {
		err = p.dump(filter(only[i]), only[i])
	}
	if refused := (*nfnetlink.Error)(nil); errors.As(err, &refused) || k.cannotFilter.Load() {
		err = p.dump(nil, Selection{})
		p.unfiltered = true
	}
	if err == nil && p.unfiltered {
		k.cannotFilter.Store(true)
	}
	return p.deletes.deleted, err
}

// filterable returns selections that the kernel can filter by, and that include at least the given flows. Linux, up to
// at least 6.18, inverts the comparison of IPv6 addresses (ctnetlink_filter_match_tuple): such a filter passes exactly
// the flows that it should exclude. So IPv6 selections only use ports.
func filterable(family model.Family, only []Selection) []Selection {
	if len(only) == 0 {
		return []Selection{{}}
	}
	if family == model.IPv4 {
		return only
	}
	var ports []Selection
	for _, s := range only {
		s.Destination = netip.AddrPortFrom(netip.Addr{}, s.Destination.Port())
		s.ReplySource = netip.AddrPortFrom(netip.Addr{}, s.ReplySource.Port())
		if s == (Selection{}) {
			return []Selection{s}
		}
		if !slices.Contains(ports, s) {
			ports = append(ports, s)
		}
	}
	return ports
}

// kernelPass is a pass over the kernel's table, with its sockets.
type kernelPass struct {
	ctx        context.Context
	family     model.Family
	stale      func(Flow) bool
	conn       *nfnetlink.Conn
	deletes    deletes
	unfiltered bool // the kernel returned a flow that a filter excludes
}

func newKernelPass(ctx context.Context, netns int, family model.Family, stale func(Flow) bool) (*kernelPass, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := nfnetlink.Dial(nfnetlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	forDeletes, err := nfnetlink.Dial(nfnetlink.Config{NetNS: netns}) // the other socket is busy with the dump
	if err != nil {
		return nil, errors.Join(fmt.Errorf("conntrack: %w", err), conn.Close())
	}
	return &kernelPass{ctx: ctx, family: family, stale: stale, conn: conn,
		deletes: deletes{conn: forDeletes, family: family}}, nil
}

func (p *kernelPass) close() {
	_ = p.conn.Close()
	_ = p.deletes.conn.Close()
}

// dump passes over the flows of a selection, with a filter that may be nil. The error is an [*nfnetlink.Error] if the
// kernel rejects the request, so that no flow has been seen.
func (p *kernelPass) dump(filter func(*nfnetlink.Builder), selection Selection) error {
	request := p.conn.Request(ctGet, unix.NLM_F_DUMP, nfnetlink.Proto(p.family))
	if filter != nil {
		filter(request)
	}
	request.End()
	err := p.conn.Dump(request, func(m nfnetlink.Message) error {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		e, ok := parseEntry(m)
		if !ok {
			return nil
		}
		p.unfiltered = p.unfiltered || !selection.matches(e.flow)
		if p.stale(e.flow) {
			return p.deletes.add(e)
		}
		return nil
	})
	if ferr := p.deletes.flush(); err == nil {
		err = ferr
	}
	switch {
	case err == nil:
		return nil
	case p.ctx.Err() != nil:
		return p.ctx.Err()
	case errors.Is(err, nfnetlink.ErrInterrupted), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS):
		return ErrInterrupted // the kernel left out some flows
	}
	return fmt.Errorf("conntrack dump: %w", err)
}
