package backendtest

import (
	"context"
	"errors"
	"io"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// CleanFlows returns a backend with package conntrack around it, as in a proxy. Its Close closes the closers, in order,
// once conntrack has ended.
func CleanFlows(ctx context.Context, netNS uintptr, families []model.Family, backend sink.Sink, closers ...io.Closer,
) sink.Sink {
	ctx, cancel := context.WithCancel(ctx)
	r := conntrack.Wrap(ctx, backend,
		conntrack.Options{Table: &conntrack.Kernel{NetNS: int(netNS)}, Families: families})
	return cleaning{r, func() error {
		cancel()
		r.Wait()
		var errs []error
		for _, c := range closers {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}}
}

type cleaning struct {
	*conntrack.Reconciler
	end func() error
}

func (c cleaning) Close() error { return c.end() }
