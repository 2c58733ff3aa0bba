package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// transferCases are about data that is too long for one packet, and about links with a smaller MTU.
func transferCases() []testCase {
	return []testCase{
		{name: "megabytes get through in both directions, whichever side ends first", rules: "S25",
			run: megabytesGetThrough},
		{name: "a reset in the middle of a transfer reaches the other side", rules: "S25", run: resetsGetThrough},
		{name: "datagrams get through up to the MTU, and beyond it in fragments", rules: "S25",
			run: datagramsGetThrough},
		{name: "a narrow way behind a service holds up no connection", rules: "S25", run: narrowWay},
		{name: "the error of a narrow way behind a service reaches the sender", rules: "S25",
			needs: []Feature{PathErrors},
			run:   pathErrorsGetThrough},
		{name: "an endpoint's own refusal reaches the sender", rules: "S25", needs: []Feature{PathErrors},
			run: refusalsGetThrough},
	}
}

// path is a path to a service that the cases try.
type path struct {
	from string
	to   destination
}

// paths returns one path of each kind.
func paths() []path {
	return []path{{localPod3, toClusterIP}, {theNode, toClusterIP}, {remotePod3, toNodePort}, {client, toVIP}}
}

// flows returns the flows of paths to a service, in each family, by a protocol.
func (s *session) flows(svc service, protocol model.Protocol, paths []path) []flow {
	svc = svc.withDefaults(0)
	port := slices.IndexFunc(svc.ports, func(p servicePort) bool { return p.protocol == protocol })
	var list []flow
	for _, f := range s.env.Families {
		for _, p := range paths {
			from := placeNamed(p.from)
			list = append(list, flow{from: from, about: fmt.Sprintf("%s to the %v of %s", p.from, p.to, svc.name),
				Flow: oracle.Flow{From: from.kind, Source: from.addr(f), Protocol: protocol,
					Destination: p.to.resolve(svc, port, f)}})
		}
	}
	return list
}

// each opens a connection for each flow and calls f with it, a few at a time. An error of f is what is wrong.
func (s *session) each(ctx context.Context, flows []flow, want string, f func(*connection) error) error {
	wrong := make([]error, len(flows))
	slots := make(chan struct{}, parallel/4)
	var wg sync.WaitGroup
	for i, fl := range flows {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if wrong[i] = ctx.Err(); wrong[i] != nil {
				return
			}
			c, err := s.n.open(fl, time.Now().Add(s.patience.answer))
			if err == nil {
				defer c.close()
				err = f(c)
			}
			if err != nil {
				wrong[i] = fmt.Errorf("flow: %v\nseen: %w%s\nwant: %s", fl, err, fromPort(c), want)
			}
		})
	}
	wg.Wait()
	var failed failures
	for _, err := range wrong {
		if err != nil {
			failed.add(err.Error())
		}
	}
	return failed.err()
}

// fromPort says which port a connection comes from, for messages.
func fromPort(c *connection) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(", from port %d", c.local.Port())
}

// megabytes is the number of bytes that a transfer sends in each direction: more than any buffer holds.
const megabytes = 2 << 20

func megabytesGetThrough(ctx context.Context, s *session) error {
	svc := external(service{endpoints: at(localPod1, remotePod1)})
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	return s.transferAll(ctx, s.flows(svc, model.TCP, paths()), clientEndsFirst, serverEndsFirst, bothAtOnce)
}

func resetsGetThrough(ctx context.Context, s *session) error {
	svc := external(service{endpoints: at(localPod1, remotePod1)})
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	return s.transferAll(ctx, s.flows(svc, model.TCP, paths()), clientResets, serverResets)
}

// transferAll makes a transfer of each kind on each flow.
func (s *session) transferAll(ctx context.Context, flows []flow, endings ...ending) error {
	for _, e := range endings {
		err := s.each(ctx, flows, fmt.Sprintf("%d bytes each way; %v", megabytes, e), func(c *connection) error {
			return c.transferOn(s.n.servers.transfers.add(e, megabytes), s.patience)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// datagramSizes are around the sizes at which something changes: the original limit of DNS, the MTU, and fragments.
func datagramSizes() []int { return []int{500, 513, 1200, 1400, 1472, 1473, 2900, 4096, 9000, 20000} }

func datagramsGetThrough(ctx context.Context, s *session) error {
	svc := external(service{endpoints: at(localPod1, remotePod1)})
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	sizes := datagramSizes()
	for _, direction := range []string{"the smallest first", "the largest first"} {
		want := fmt.Sprintf("an answer as long as the datagram, to each of %v bytes, %s", sizes, direction)
		err := s.each(ctx, s.flows(svc, model.UDP, paths()), want, func(c *connection) error {
			for _, size := range sizes {
				if c.flow.From == oracle.Node && size > 1400 && !s.demands(NodeDatagrams) {
					continue
				}
				if _, err := c.askLong(size, time.Now().Add(s.patience.answer)); err != nil {
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

// narrowService has its only endpoint behind the link with the smallest MTU.
func narrowService() service { return external(service{slot: 40, endpoints: at(farPod)}) }

func narrowWay(ctx context.Context, s *session) error {
	if err := s.put(ctx, narrowService()); err != nil {
		return err
	}
	return s.transferAll(ctx, s.flows(narrowService(), model.TCP, paths()), bothAtOnce)
}

func pathErrorsGetThrough(ctx context.Context, s *session) error {
	if err := s.put(ctx, narrowService()); err != nil {
		return err
	}
	want := fmt.Sprintf("an ICMP error that tells the MTU, %d, and answers to what is smaller", farMTU)
	return s.each(ctx, s.flows(narrowService(), model.UDP, paths()), want, func(c *connection) error {
		if err := c.sock.forbidFragments(); err != nil {
			return err
		}
		if _, err := c.askLong(1000, time.Now().Add(s.patience.answer)); err != nil {
			return fmt.Errorf("1000 bytes: %w", err)
		}
		var network *networkError
		_, err := c.askLong(farMTU+50, time.Now().Add(s.patience.answer))
		switch {
		case err == nil:
			return fmt.Errorf("%d bytes were answered", farMTU+50)
		case !errors.As(err, &network) || !network.tooBig():
			return fmt.Errorf("%d bytes: %w", farMTU+50, err)
		case network.info != farMTU:
			return fmt.Errorf("an MTU of %d: %w", network.info, err)
		}
		if _, err := c.askLong(1000, time.Now().Add(s.patience.answer)); err != nil {
			return fmt.Errorf("1000 bytes, after that: %w", err)
		}
		return nil
	})
}

// refusalsGetThrough sends to an endpoint on which nothing listens.
func refusalsGetThrough(ctx context.Context, s *session) error {
	nobody := []endpoint{{at: localPod1, target: 9}, {at: remotePod1, target: 9}}
	svc := external(service{ports: udpOnly, endpoints: nobody})
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	want := "the endpoint's own ICMP error"
	return s.each(ctx, s.flows(svc, model.UDP, paths()), want, func(c *connection) error {
		a, err := c.ask(time.Now().Add(s.patience.answer))
		var network *networkError
		switch {
		case err == nil:
			return fmt.Errorf("an answer from %v", a.server)
		case !errors.As(err, &network) || !network.icmp || outsideAddr(network.from):
			return err
		}
		return nil
	})
}
