package cases

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// transferCases cover payloads longer than one packet, and links with a smaller MTU.
func transferCases() []Case {
	svc := external(service{Endpoints: cluster.At(localPod1, remotePod1)})
	narrow := external(service{Slot: 40, Endpoints: cluster.At(farPod)})
	closed := external(service{Ports: udpOnly, Endpoints: []endpoint{{At: localPod1, Target: 9},
		{At: remotePod1, Target: 9}}})
	node, others := fourPaths()[1], slices.Delete(fourPaths(), 1, 2)
	return []Case{
		{Name: "megabytes get through in both directions, whichever side ends first", Rules: "S25",
			run: serving(svc, transfersEnd(network.ClientEndsFirst, network.ServerEndsFirst, network.BothAtOnce))},
		{Name: "a reset in the middle of a transfer reaches the other side", Rules: "S25",
			run: serving(svc, transfersEnd(network.ClientResets, network.ServerResets))},
		{Name: "datagrams get through up to the MTU, and beyond it in fragments", Rules: "S25",
			run: serving(svc, datagramsGetThrough(datagramSizes(), others...))},
		{Name: "datagrams of the node itself get through up to the MTU", Rules: "S25",
			run: serving(svc, datagramsGetThrough(datagramSizes()[:4], node))},
		{Name: "datagrams of the node itself get through beyond the MTU, in fragments", Rules: "S25",
			run: serving(svc, datagramsGetThrough(datagramSizes()[4:], node))},
		{Name: "a narrow way behind a service holds up no connection", Rules: "S25",
			run: serving(narrow, transfersEnd(network.BothAtOnce))},
		{Name: "the error of a narrow way behind a service reaches the sender", Rules: "S25",
			run: serving(narrow, pathErrorsGetThrough)},
		{Name: "an endpoint's own refusal reaches the sender", Rules: "S25", run: serving(closed, refusalsGetThrough)},
	}
}

// fourPaths returns one path of each kind to a service.
func fourPaths() []path {
	return []path{{localPod3, toClusterIP}, {theNode, toClusterIP}, {remotePod3, toNodePort}, {client, toVIP}}
}

// each opens a connection for each flow and calls f with it. The error says what f found wrong.
func (b *bed) each(ctx context.Context, flows []network.Attempt, want string,
	f func(*network.Connection) error) error {
	return testbed.Each(flows, func(fl network.Attempt) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := b.Network.Open(fl, time.Now().Add(b.Timeouts.Answer))
		if err == nil {
			defer c.Close()
			err = f(c)
		}
		if err != nil {
			return fmt.Errorf("flow: %v\nseen: %w%s\nwant: %s", fl, err, fromPort(c), want)
		}
		return nil
	})
}

// fromPort describes a connection's source port for messages.
func fromPort(c *network.Connection) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(", from port %d", c.Local.Port())
}

// megabytes is the number of bytes sent in each direction: more than any buffer holds.
const megabytes = 2 << 20

// transfersEnd returns a case with a transfer of each kind on each path.
func transfersEnd(endings ...network.Ending) func(context.Context, *bed, service) error {
	return func(ctx context.Context, b *bed, svc service) error {
		for _, e := range endings {
			err := b.each(ctx, b.flows(svc, model.TCP, fourPaths()), fmt.Sprintf("%d bytes each way; %v", megabytes, e),
				func(c *network.Connection) error { return c.Transfer(e, megabytes, b.Timeouts.Timeouts) })
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// datagramSizes are just below and above the sizes that matter: DNS's original limit, the MTU, fragment sizes. The
// first four fit the MTU with any header.
func datagramSizes() []int { return []int{500, 513, 1200, 1400, 1472, 1473, 2900, 4096, 9000, 20000} }

// datagramsGetThrough sends datagrams of these sizes on paths, in rising and then falling order.
func datagramsGetThrough(sizes []int, paths ...path) func(context.Context, *bed, service) error {
	return func(ctx context.Context, b *bed, svc service) error {
		sizes := slices.Clone(sizes)
		for _, direction := range []string{"the smallest first", "the largest first"} {
			want := fmt.Sprintf("an answer as long as the datagram, to each of %v bytes, %s", sizes, direction)
			err := b.each(ctx, b.flows(svc, model.UDP, paths), want, func(c *network.Connection) error {
				for _, size := range sizes {
					if _, err := c.AskLong(size, time.Now().Add(b.Timeouts.Answer)); err != nil {
						return fmt.Errorf("%d bytes: %w", size, err)
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			slices.Reverse(sizes)
		}
		return nil
	}
}

// pathErrorsGetThrough sends to a service whose only endpoint is behind the link with the smallest MTU.
func pathErrorsGetThrough(ctx context.Context, b *bed, svc service) error {
	want := fmt.Sprintf("an ICMP error that tells the MTU, %d, and answers to what is smaller", network.FarMTU)
	return b.each(ctx, b.flows(svc, model.UDP, fourPaths()), want, func(c *network.Connection) error {
		if err := c.ForbidFragments(); err != nil {
			return err
		}
		if _, err := c.AskLong(1000, time.Now().Add(b.Timeouts.Answer)); err != nil {
			return fmt.Errorf("1000 bytes: %w", err)
		}
		_, err := c.AskLong(network.FarMTU+50, time.Now().Add(b.Timeouts.Answer))
		if err == nil {
			return fmt.Errorf("%d bytes were answered", network.FarMTU+50)
		}
		if mtu := network.ToldMTU(err); mtu != network.FarMTU {
			return fmt.Errorf("%d bytes, and an MTU of %d is told: %w", network.FarMTU+50, mtu, err)
		}
		if _, err := c.AskLong(1000, time.Now().Add(b.Timeouts.Answer)); err != nil {
			return fmt.Errorf("1000 bytes, after that: %w", err)
		}
		return nil
	})
}

// refusalsGetThrough connects to endpoints on which nothing listens.
func refusalsGetThrough(ctx context.Context, b *bed, svc service) error {
	want := "the endpoint's own ICMP error"
	return b.each(ctx, b.flows(svc, model.UDP, fourPaths()), want, func(c *network.Connection) error {
		a, err := c.Ask(time.Now().Add(b.Timeouts.Answer))
		switch {
		case err == nil:
			return fmt.Errorf("an answer from %v", a.Server)
		case !network.ToldByICMP(err):
			return err
		}
		return nil
	})
}
