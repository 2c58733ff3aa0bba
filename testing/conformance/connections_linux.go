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

// connectionCases are about connections that last while endpoints change, and about new ones meanwhile.
func connectionCases() []testCase {
	return []testCase{
		{name: "connections that stand survive changes to other endpoints", rules: "S25",
			run: connectionsSurviveOthers},
		{name: "connections that stand stay with an endpoint that takes no new ones", rules: "S25",
			needs: []Feature{DrainedConnections}, run: connectionsSurviveTheirEndpoint},
		{name: "connections on which nothing is said for long are still there", rules: "S25", run: idleConnectionsStay},
		{name: "no new connection is lost while endpoints come and go", rules: "S46", run: nothingIsLostInChurn},
	}
}

// standing has connections that stay open.
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
					err := st.open(s, flow{
						Flow: oracle.Flow{From: place.kind, Source: place.addr(f),
							Destination: to.resolve(svc, port, f), Protocol: p.protocol},
						from: place, about: fmt.Sprintf("%s to the %v of %s", from, to, svc.name),
					})
					if err != nil {
						st.close()
						return nil, err
					}
				}
			}
		}
	}
	return st, nil
}

// check asks on each connection who answers: it must be the same endpoint as at first, and see the same client address.
func (st *standing) check(p patience) error {
	var failed failures
	for _, c := range st.list {
		a, err := c.ask(time.Now().Add(p.answer))
		switch {
		case err != nil:
			failed.add(fmt.Sprintf("flow: %v, on a connection that stands\nseen: %v\nwant: an answer from %v", c.flow,
				err, c.first.server))
		case a.server != c.first.server || a.client != c.first.client:
			failed.add(fmt.Sprintf(
				"flow: %v, on a connection that stands\nseen: an answer from %v to %v\nwant: one from %v to %v",
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
		{"external traffic policy Local was set",
			[]service{external(service{endpoints: append(at(remotePod1), stays...), externalLocal: true})}},
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
		err := s.step(ctx, step{services: one(svc),
			traffic: []traffic{{from: fromPod, to: toCluster, want: change.new}}})
		if err != nil {
			return fmt.Errorf("after %s, new connections:\n\n%w", change.what, err)
		}
		if err := open.check(s.patience); err != nil {
			return fmt.Errorf("after %s:\n\n%w", change.what, err)
		}
	}
	return nil
}

// stream makes new connections, from several sources, one after the other, until it is stopped. None may be refused,
// unanswered, or delayed by a lost packet.
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
	var groups [][]streamed
	for _, src := range sources {
		from := placeNamed(src.from)
		var group []streamed
		for _, f := range s.env.Families {
			fl := flow{from: from,
				about: fmt.Sprintf("%s to the %v of %s, one of a stream", src.from, src.to, svc.name),
				Flow: oracle.Flow{
					From: from.kind, Source: from.addr(f), Destination: src.to.resolve(svc, 0, f), Protocol: model.TCP}}
			group = append(group, streamed{fl, func(seen seen) string {
				if why := whyWrong(seen, f, allowed); why != "" {
					return fmt.Sprintf("flow: %v\nseen: %v\nwant: %s", fl, seen, why)
				}
				return ""
			}})
		}
		groups = append(groups, group)
	}
	return s.stream(groups)
}

// streamed is a flow of a stream. wrong returns what is wrong with what was seen, "" for nothing.
type streamed struct {
	flow
	wrong func(seen) string
}

// stream starts a stream of the flows of each group, one after the other.
func (s *session) stream(groups [][]streamed) *stream {
	st := &stream{stop: make(chan struct{}), made: make([]atomic.Int64, len(groups))}
	n, patience := s.n, s.patience // The session itself changes meanwhile.
	for i, group := range groups {
		st.wg.Go(func() {
			// The pace limits the number of entries in connection tracking.
			pace := time.NewTicker(2 * time.Millisecond)
			defer pace.Stop()
			for count := 0; ; count++ {
				select {
				case <-st.stop:
					return
				case <-pace.C:
				}
				next := group[count%len(group)]
				seen := n.try(attempt{flow: next.flow}, patience)
				st.made[i].Add(1)
				if why := next.wrong(seen); why != "" {
					st.mu.Lock()
					st.failed.add(why)
					st.mu.Unlock()
				}
			}
		})
	}
	return st
}

// whyWrong returns what is expected of a connection of a stream, or "" if it was as expected.
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

// end stops the stream, and returns what went wrong.
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

// idleFor is how long nothing is said on idle connections: longer than a restless dataplane might remember them, and no
// longer than a test can wait.
const idleFor = 3 * time.Second

// idleConnectionsStay opens connections, and changes other services until they have been idle for long enough.
func idleConnectionsStay(ctx context.Context, s *session) error {
	quiet := external(service{name: "quiet", slot: 1, endpoints: at(localPod1, remotePod1)})
	if err := s.put(ctx, quiet); err != nil {
		return err
	}
	open, err := s.stand(quiet)
	if err != nil {
		return err
	}
	defer open.close()
	over := time.NewTimer(idleFor)
	defer over.Stop()
	busy := external(service{name: "busy", slot: 2})
	for wave := 0; ; wave++ {
		busy.endpoints = at([]string{localPod1, localPod2, remotePod1, remotePod2}[:wave%5]...)
		if err := s.put(ctx, quiet, busy); err != nil {
			return err
		}
		select {
		case <-over.C:
			if err := open.check(s.patience); err != nil {
				return fmt.Errorf("after %v in which nothing was said:\n\n%w", idleFor, err)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idleFor / 20):
		}
	}
}
