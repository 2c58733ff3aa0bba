package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// DeleteUDP implements [Table].
func (k *Kernel) DeleteUDP(ctx context.Context, family model.Family, stale func(Flow) bool) (deleted int, err error) {
	return k.deleteWith(ctx, family, udpFilter, stale)
}

// deleteWith asks for the flows that a filter lets through, and for all of them if the kernel cannot filter.
func (k *Kernel) deleteWith(
	ctx context.Context, family model.Family, filter func(*nfnetlink.Builder), stale func(Flow) bool,
) (deleted int, err error) {
	if !k.cannotFilter.Load() {
		deleted, err = k.deleteUDP(ctx, family, filter, stale)
		if refused := (*nfnetlink.Error)(nil); !errors.As(err, &refused) {
			return deleted, err
		}
	}
	deleted, err = k.deleteUDP(ctx, family, nil, stale)
	if err == nil {
		k.cannotFilter.Store(true)
	}
	return deleted, err
}

// deleteUDP passes over the table once. The error is an [*nfnetlink.Error] if the kernel refuses the request for a dump as
// it is, so that no flow has been seen.
func (k *Kernel) deleteUDP(
	ctx context.Context, family model.Family, filter func(*nfnetlink.Builder), stale func(Flow) bool,
) (deleted int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	dump, err := nfnetlink.Dial(nfnetlink.Config{NetNS: k.NetNS})
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	defer dump.Close()
	conn, err := nfnetlink.Dial(nfnetlink.Config{NetNS: k.NetNS})
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	defer conn.Close()

	request := dump.Request(ctGet, unix.NLM_F_DUMP, nfnetlink.Proto(family))
	if filter != nil {
		filter(request)
	}
	request.End()
	deletes := deletes{conn: conn, family: family}
	err = dump.Dump(request, func(m nfnetlink.Message) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if e, ok := parseEntry(m); ok && stale(e.flow) {
			return deletes.add(e)
		}
		return nil
	})
	if ferr := deletes.flush(); err == nil {
		err = ferr
	}
	switch {
	case err == nil:
		return deletes.deleted, nil
	case ctx.Err() != nil:
		return deletes.deleted, ctx.Err()
	case errors.Is(err, nfnetlink.ErrInterrupted), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS):
		return deletes.deleted, ErrInterrupted // the kernel had to leave something out
	}
	return deletes.deleted, fmt.Errorf("conntrack dump: %w", err)
}
