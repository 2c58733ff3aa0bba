package frontend_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// The work consists of the comparisons of claims, which find the owners of keys, and of the changes that a backend
// gets. A claim among others costs their logarithm.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	perFrontend := 7 // the logarithm of 200 contested claims, and what a backend gets
	if need.IsDeep() {
		perFrontend = 9 // of 1,000
	}
	backendtest.Tenants{
		Price: backendtest.Price{Service: 1, Port: 1, Frontend: perFrontend, Endpoint: 1, Bytes: 15},
		Text:  backendtest.Unchanged,
		Pairs: true,
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			b := &counting{}
			var err error
			b.Table, err = frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Limits: limits, Apply: b.apply})
			require.NoError(t, err)
			compared := 0
			return b, func() backendtest.Work {
				b.work.Add(b.Compared()-compared, 0)
				compared = b.Compared()
				return b.work.Take()
			}
		}}.Search(t)
}

// counting is a backend that counts what it gets.
type counting struct {
	*frontend.Table
	work backendtest.Work
}

func (b *counting) apply(_ context.Context, c *frontend.Changes) error {
	count := func(what any) { b.work.Add(1, len(fmt.Sprint(what))) }
	for p := range c.Ports() {
		count(p.Name())
		for fr := range p.FrontendChanges() {
			count(fr.Before)
			count(fr.After)
		}
		for _, e := range p.EndpointChanges(model.ClusterSet) {
			count(e.Slot)
		}
	}
	c.Accept()
	return nil
}

func (*counting) Close() error { return nil }

func (b *counting) CleanUp(ctx context.Context) error {
	return b.Table.CleanUp(ctx, func(context.Context) error { return nil })
}

// DescribeService returns the frontends and endpoints of a service.
func (b *counting) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	var text strings.Builder
	b.View(name, func(_ *frontend.Changes, ports []*frontend.PortChange) {
		for _, p := range ports {
			for fr := range p.Frontends() {
				fmt.Fprintln(&text, fr)
			}
			for e := range p.Endpoints(model.ClusterSet) {
				fmt.Fprintln(&text, e)
			}
		}
	})
	return text.String(), nil
}
