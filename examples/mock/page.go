package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/page"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

type described struct{ *screen }

var _ sink.Describer = (*described)(nil)

// DescribeService implements sink.Describer: it returns the rows of the routing table.
func (d *described) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	rows := d.table[name]
	for _, r := range sortedRows(rows) {
		fmt.Fprintf(w, "%s\tfrom %s:\t%v\n", r.destination, r.from, rows[r])
	}
	_ = w.Flush() // a Builder does not fail
	return b.String(), nil
}

// servePage serves the page until ctx ends.
func servePage(ctx context.Context, p *page.Page, listener net.Listener) error {
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}
