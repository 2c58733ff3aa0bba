package cases

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

const (
	healthCase   = "the health check of a service knows whether the node has endpoints"
	vipProbeCase = "the health check of a service answers at a VIP that the node has"
)

// healthCases cover the health checks that a program answers itself.
func healthCases() []Case {
	return []Case{
		{Name: healthCase, Rules: "S38", run: func(ctx context.Context, b *bed) error {
			return b.healthFollows(ctx, func(f model.Family) netip.Addr { return network.PlanOf(f).HostAddresses()[0] })
		}},
		{Name: vipProbeCase, Rules: "S65", run: func(ctx context.Context, b *bed) (err error) {
			vip := checked().WithDefaults(0).VIPAddr
			if err := b.Network.GiveToNode("lo", vip); err != nil {
				return &testbed.SetupError{Err: err}
			}
			defer func() { _ = b.Network.TakeFromNode("lo", vip) }()
			return b.healthFollows(ctx, vip)
		}},
	}
}

// checked is a service with a health check.
func checked(places ...string) service {
	return external(service{ExternalLocal: true, HealthCheck: healthCheckPort, Endpoints: cluster.At(places...)})
}

// healthFollows queries the health check at an address of the node while local endpoints are added and removed.
func (b *bed) healthFollows(ctx context.Context, where func(model.Family) netip.Addr) error {
	for _, st := range []struct {
		what   string
		places []string
		want   int
	}{
		{"with an endpoint on the node", []string{localPod1, remotePod1}, http.StatusOK},
		{"after it went", []string{remotePod1}, http.StatusServiceUnavailable},
		{"after another one came", []string{localPod2, remotePod1}, http.StatusOK},
	} {
		if err := b.Put(ctx, checked(st.places...)); err != nil {
			return err
		}
		for _, f := range b.Env.Families {
			to := netip.AddrPortFrom(where(f), healthCheckPort)
			if err := b.healthBecomes(ctx, to, st.want); err != nil {
				return fmt.Errorf("%s:\n\n%w", st.what, err)
			}
		}
	}
	return nil
}

// healthBecomes queries a health check until the answer is right, for as long as a program may take to apply a change.
func (b *bed) healthBecomes(ctx context.Context, to netip.AddrPort, want int) error {
	p := b.Program
	for began := time.Now(); ; {
		err := b.healthIs(ctx, to, want)
		if err == nil || testbed.Overdue(p.Machine, began, p.Figures.Settle()) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Host.Ended():
			return p.Host.Failure()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// healthIs queries a health check on the node itself, and connects to it from outside.
func (b *bed) healthIs(ctx context.Context, to netip.AddrPort, want int) error {
	status := 0
	err := b.Host.Do(func() (err error) {
		status, err = statusAt(ctx, to, b.Timeouts.Answer)
		return err
	})
	if err != nil {
		return fmt.Errorf("flow: a GET of the node to %v, the health check\nseen: %w\nwant: status %d", to, err, want)
	}
	if status != want {
		return fmt.Errorf("flow: a GET of the node to %v, the health check\nseen: status %d\nwant: status %d", to, status,
			want)
	}
	flow := network.HostNamed(client).FlowTo(to, model.TCP, "the health check")
	c, err := b.Network.Open(flow, time.Now().Add(b.Timeouts.Answer))
	if err != nil {
		return fmt.Errorf("flow: %v\nseen: %w\nwant: a connection", flow, err)
	}
	c.Close()
	return nil
}

// statusAt returns the status of a GET from the thread's network namespace: http.Client would dial elsewhere.
func statusAt(ctx context.Context, to netip.AddrPort, timeout time.Duration) (int, error) {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", to); err != nil {
		return 0, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}
