package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// path is a path to a service that the cases try.
type path struct {
	from string
	to   destination
}

// paths returns the paths from each place to each destination.
func paths(from []string, to []destination) []path {
	var list []path
	for _, f := range from {
		for _, t := range to {
			list = append(list, path{f, t})
		}
	}
	return list
}

// flows returns the flows of paths to a service, in each family, by a protocol; 0: to all of its ports.
func (s *session) flows(svc service, protocol model.Protocol, paths []path) []network.Attempt {
	svc = svc.withDefaults(0)
	var list []network.Attempt
	for _, f := range s.env.Families {
		for i, port := range svc.ports {
			for _, p := range paths {
				if protocol == 0 || port.protocol == protocol {
					list = append(list, svc.flow(network.PlaceNamed(p.from), p.to, i, f))
				}
			}
		}
	}
	return list
}

// standing has connections that stay open.
type standing []*standingConnection

type standingConnection struct {
	*network.Connection
	first network.Answer
}

// open opens a connection for each flow, except for those that fail with one of the errors.
func (s *session) open(flows []network.Attempt, except ...unix.Errno) (standing, error) {
	var st standing
	for _, f := range flows {
		c, err := s.n.Open(f, time.Now().Add(s.patience.Answer))
		if slices.ContainsFunc(except, func(e unix.Errno) bool { return network.IsErrno(err, e) }) {
			continue
		}
		if err != nil {
			st.close()
			return nil, fmt.Errorf("flow: %v\nseen: %w\nwant: a connection", f, err)
		}
		st = append(st, &standingConnection{Connection: c})
	}
	return st, nil
}

// stand opens a connection for each flow, and asks who answers.
func (s *session) stand(flows []network.Attempt) (standing, error) {
	st, err := s.open(flows)
	if err != nil {
		return nil, err
	}
	err = each(st, func(c *standingConnection) (err error) {
		if c.first, err = c.Ask(time.Now().Add(s.patience.Answer)); err != nil {
			return fmt.Errorf("flow: %v\nseen: %w\nwant: an answer", c.Flow, err)
		}
		return nil
	})
	if err != nil {
		st.close()
	}
	return st, err
}

// check asks on each connection who answers: it must be the same endpoint as at first, and see the same client address.
func (st standing) check(p patience) error {
	return each(st, func(c *standingConnection) error {
		a, err := c.Ask(time.Now().Add(p.Answer))
		if err == nil && a.Server == c.first.Server && a.Client == c.first.Client {
			return nil
		}
		what := fmt.Sprintf("an answer from %v to %v", a.Server, a.Client)
		if err != nil {
			what = err.Error()
		}
		return fmt.Errorf("flow: %v, on a connection that stands\nseen: %s\nwant: an answer from %v to %v", c.Flow, what,
			c.first.Server, c.first.Client)
	})
}

func (st standing) close() {
	for _, c := range st {
		c.Close()
	}
}

// stream makes new connections, from several sources, one after the other, until it is stopped.
type stream struct {
	stop   chan struct{}
	wg     sync.WaitGroup
	made   []atomic.Int64 // per source
	mu     sync.Mutex
	failed failures
}

// streamed is a flow of a stream. wrong returns what is wrong with what was seen, or nil.
type streamed struct {
	network.Attempt
	wrong func(network.Seen) error
}

// startStream starts a stream to a service whose endpoints may become any of those that are allowed. None of its
// connections may be refused, unanswered, or delayed by a lost packet.
func (s *session) startStream(svc service, allowed ...string) *stream {
	var groups [][]streamed
	for _, p := range append(paths([]string{localPod3, theNode, remotePod3}, toCluster), path{client, toVIP}) {
		var group []streamed
		for _, f := range s.flows(svc, model.TCP, []path{p}) {
			f.About += ", one of a stream"
			group = append(group, streamed{f, func(seen network.Seen) error {
				if why := whyWrong(seen, f.Family(), allowed); why != "" {
					return fmt.Errorf("flow: %v\nseen: %v\nwant: %s", f, seen, why)
				}
				return nil
			}})
		}
		groups = append(groups, group)
	}
	return s.stream(groups)
}

// whyWrong returns what is expected of a connection of a stream, or "" if it was as expected.
func whyWrong(s network.Seen, f model.Family, allowed []string) string {
	switch {
	case s.Verdict != oracle.Deliver:
		return "an answer, at every moment"
	case s.Lost:
		return "no packet to be lost"
	}
	for _, name := range allowed {
		if s.Endpoint == network.PlaceNamed(name).ServerAt(f) {
			return ""
		}
	}
	return fmt.Sprintf("an endpoint that is or was there: one of %v", allowed)
}

// stream starts a stream of the flows of each group, one after the other.
func (s *session) stream(groups [][]streamed) *stream {
	st := &stream{stop: make(chan struct{}), made: make([]atomic.Int64, len(groups))}
	try, patience := s.try, s.patience.Patience // The session itself changes meanwhile.
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
				seen := try(next.Attempt, patience)
				st.made[i].Add(1)
				why := next.wrong(seen)
				st.mu.Lock()
				st.failed.add(why)
				st.mu.Unlock()
			}
		})
	}
	return st
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

// during calls f and then stops the stream. It returns what went wrong with that or, if nothing did, the error of f.
func (st *stream) during(f func() error) error {
	err := f()
	close(st.stop)
	st.wg.Wait()
	if failed := st.failed.err(); failed != nil {
		return failed
	}
	return err
}
