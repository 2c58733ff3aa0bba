package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// connectionCases are about connections that last while endpoints come and go, and about new ones that come meanwhile.
func connectionCases() []testCase {
	return []testCase{
		{name: "connections that stand survive changes to other endpoints", rules: "S25", run: connectionsSurviveOthers},
		{name: "connections that stand stay with an endpoint that takes no new ones", rules: "S25",
			needs: []Feature{DrainedConnections}, run: connectionsSurviveTheirEndpoint},
		{name: "no new connection is lost while endpoints come and go", rules: "S46", run: nothingIsLostInChurn},
	}
}

// standing are connections that stay open.
type standing struct {
	list []standingConnection
}

type standingConnection struct {
	*connection
	first answer
}

// stand opens TCP connections to a service, from everywhere to all its addresses.
func (s *session) stand(svc service) (*standing, error) {
	svc = svc.withDefaults(0)
	st := &standing{}
	for _, f := range s.env.Families {
		for port, p := range svc.ports {
			if p.protocol != model.TCP {
				continue
			}
			for _, from := range fromAll {
				for _, to := range everywhere {
					place := placeNamed(from)
					c, err := s.n.open(flow{
						Flow: oracle.Flow{From: place.kind, Source: place.addr(f), Destination: to.resolve(svc, port, f), Protocol: p.protocol},
						from: place, about: fmt.Sprintf("%s to the %v of %s", from, to, svc.name),
					}, time.Now().Add(s.patience.answer))
					if err != nil {
						st.close()
						return nil, fmt.Errorf("open a connection: %w", err)
					}
					st.list = append(st.list, standingConnection{connection: c})
					last := &st.list[len(st.list)-1]
					if last.first, err = c.ask(time.Now().Add(s.patience.answer)); err != nil {
						st.close()
						return nil, fmt.Errorf("flow: %v\nseen: %v\nwant: an answer", c.flow, err)
					}
				}
			}
		}
	}
	return st, nil
}

// check asks on each connection who is there: it must be who was there first, and see the client as at first.
func (st *standing) check(p patience) error {
	var failed failures
	for _, c := range st.list {
		a, err := c.ask(time.Now().Add(p.answer))
		switch {
		case err != nil:
			failed.add(fmt.Sprintf("flow: %v, on a connection that stands\nseen: %v\nwant: an answer from %v", c.flow, err, c.first.server))
		case a.server != c.first.server || a.client != c.first.client:
			failed.add(fmt.Sprintf("flow: %v, on a connection that stands\nseen: an answer from %v to %v\nwant: one from %v to %v",
				c.flow, a.server, a.client, c.first.server, c.first.client))
		}
	}
	return failed.err()
}

func (st *standing) close() {
	for _, c := range st.list {
		c.close()
	}
}

func connectionsSurviveOthers(ctx context.Context, s *session) error {
	stays := at(localPod1)
	base := external(service{endpoints: stays})
	if err := s.put(ctx, base); err != nil {
		return err
	}
	open, err := s.stand(base)
	if err != nil {
		return err
	}
	defer open.close()
	other := external(service{name: "other", slot: 2, endpoints: at(remotePod2)})
	for _, change := range []struct {
		what     string
		services []service
	}{
		{"endpoints came", []service{external(service{endpoints: append(at(remotePod1, remotePod2), stays...)})}},
		{"one of them went", []service{external(service{endpoints: append(at(remotePod1), stays...)})}},
		{"another service came", []service{external(service{endpoints: stays}), other}},
		{"it went", []service{external(service{endpoints: stays})}},
		{"affinity was switched on", []service{external(service{endpoints: stays, affinity: time.Hour})}},
		{"external traffic policy Local was set", []service{external(service{endpoints: append(at(remotePod1), stays...), externalLocal: true})}},
	} {
		if change.services[0].affinity > 0 && s.factory.lacks(SessionAffinity) {
			continue
		}
		if err := s.put(ctx, change.services...); err != nil {
			return err
		}
		if err := open.check(s.patience); err != nil {
			return fmt.Errorf("after %s:\n\n%w", change.what, err)
		}
	}
	return nil
}

func connectionsSurviveTheirEndpoint(ctx context.Context, s *session) error {
	base := external(service{endpoints: at(localPod1, remotePod1)})
	if err := s.put(ctx, base); err != nil {
		return err
	}
	open, err := s.stand(base)
	if err != nil {
		return err
	}
	defer open.close()
	for _, change := range []struct {
		what      string
		endpoints []endpoint
		new       want
	}{
		{"both endpoints began to terminate, and another one came",
			append(at(remotePod2), inPhase(terminating, localPod1, remotePod1)...), keeping(remotePod2)},
		{"both had gone", at(remotePod2), keeping(remotePod2)},
		{"there was none any more", nil, refused},
	} {
		svc := external(service{endpoints: change.endpoints})
		err := s.step(ctx, step{services: one(svc), traffic: []traffic{{from: fromPod, to: toCluster, want: change.new}}})
		if err != nil {
			return fmt.Errorf("after %s, new connections:\n\n%w", change.what, err)
		}
		if err := open.check(s.patience); err != nil {
			return fmt.Errorf("after %s:\n\n%w", change.what, err)
		}
	}
	return nil
}

// stream makes new TCP connections to a service, from several sources, one after the other, until it is stopped. None may be
// refused, unanswered, or delayed by a lost packet.
type stream struct {
	stop   chan struct{}
	wg     sync.WaitGroup
	made   []atomic.Int64 // per source
	mu     sync.Mutex
	failed failures
}

// startStream starts a stream to a service whose endpoints may become any of those that are allowed.
func (s *session) startStream(svc service, allowed ...string) *stream {
	svc = svc.withDefaults(0)
	sources := []struct {
		from string
		to   destination
	}{{localPod3, toClusterIP}, {theNode, toClusterIP}, {remotePod3, toClusterIP}, {client, toVIP}}
	st := &stream{stop: make(chan struct{}), made: make([]atomic.Int64, len(sources))}
	n, families, patience := s.n, s.env.Families, s.patience // The session itself changes meanwhile.
	for i, src := range sources {
		from := placeNamed(src.from)
		st.wg.Go(func() {
			// Not faster: the machine has other things to do than to fill its connection tracking.
			pace := time.NewTicker(2 * time.Millisecond)
			defer pace.Stop()
			for count := 0; ; count++ {
				select {
				case <-st.stop:
					return
				case <-pace.C:
				}
				f := families[count%len(families)]
				fl := flow{from: from, about: fmt.Sprintf("%s to the %v of %s, one of a stream", src.from, src.to, svc.name), Flow: oracle.Flow{
					From: from.kind, Source: from.addr(f), Destination: src.to.resolve(svc, 0, f), Protocol: model.TCP}}
				seen := n.try(attempt{flow: fl}, patience)
				st.made[i].Add(1)
				if why := whyWrong(seen, f, allowed); why != "" {
					st.mu.Lock()
					st.failed.add(fmt.Sprintf("flow: %v\nseen: %v\nwant: %s", fl, seen, why))
					st.mu.Unlock()
				}
			}
		})
	}
	return st
}

// whyWrong returns what is wanted of a connection of a stream, "" if it is what was seen.
func whyWrong(s seen, f model.Family, allowed []string) string {
	switch {
	case s.Verdict != oracle.Deliver:
		return "an answer, at every moment"
	case s.lost:
		return "no packet to be lost"
	}
	for _, name := range allowed {
		if s.Endpoint == netip.AddrPortFrom(placeNamed(name).addr(f), serverPort) {
			return ""
		}
	}
	return fmt.Sprintf("an endpoint that is or was there: one of %v", allowed)
}

// await waits until each source has made n more connections, or ctx ends.
func (st *stream) await(ctx context.Context, n int64) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range st.made {
		for goal := st.made[i].Load() + n; st.made[i].Load() < goal; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// end stops the stream, and tells what went wrong.
func (st *stream) end() error {
	close(st.stop)
	st.wg.Wait()
	return st.failed.err()
}

func nothingIsLostInChurn(ctx context.Context, s *session) error {
	tcp := []servicePort{{protocol: model.TCP}}
	web := func(pods ...string) service { return external(service{slot: 1, ports: tcp, endpoints: at(pods...)}) }
	other := external(service{name: "other", slot: 2, endpoints: at(remotePod2)})
	waves := [][]service{
		{web(localPod1, remotePod1)},
		{web(localPod1, remotePod1, remotePod2)},
		{web(remotePod2)},
		{web(localPod1), other},
		{web(remotePod1, localPod2), other},
		{web(localPod1, localPod2, remotePod1, remotePod2)},
		{web(localPod2)},
	}
	if err := s.put(ctx, waves[0]...); err != nil {
		return err
	}
	st := s.startStream(waves[0][0], localPod1, localPod2, remotePod1, remotePod2)
	err := func() error {
		for range 4 {
			for _, w := range waves {
				if err := s.put(ctx, w...); err != nil {
					return err
				}
				if err := st.await(ctx, 3); err != nil {
					return err
				}
			}
		}
		return nil
	}()
	if failed := st.end(); failed != nil {
		return failed
	}
	return err
}
