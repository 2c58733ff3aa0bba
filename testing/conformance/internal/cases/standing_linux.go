package cases

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// path is a source and a destination of a service.
type path struct {
	from string
	to   destination
}

func paths(from []string, to []destination) []path {
	var list []path
	for _, f := range from {
		for _, t := range to {
			list = append(list, path{f, t})
		}
	}
	return list
}

// flows returns the flows of paths to a service, in each family, by a protocol; 0 means all of its ports.
func (b *bed) flows(svc service, protocol model.Protocol, paths []path) []network.Attempt {
	svc = svc.WithDefaults(0)
	var list []network.Attempt
	for _, f := range b.Env.Families {
		for i, port := range svc.Ports {
			for _, p := range paths {
				if protocol == 0 || port.Protocol == protocol {
					list = append(list, svc.Flow(network.HostNamed(p.from), p.to, i, f))
				}
			}
		}
	}
	return list
}

// standing is a list of open connections.
type standing []*standingConnection

type standingConnection struct {
	*network.Connection
	first network.Answer
}

// open opens a connection for each flow, except for flows that fail with one of the given errors.
func (b *bed) open(flows []network.Attempt, except ...unix.Errno) (standing, error) {
	var st standing
	for _, f := range flows {
		c, err := b.Network.Open(f, time.Now().Add(b.Timeouts.Answer))
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

// stand opens a connection for each flow and records which endpoint answers.
func (b *bed) stand(flows []network.Attempt) (standing, error) {
	st, err := b.open(flows)
	if err != nil {
		return nil, err
	}
	err = testbed.Each(st, func(c *standingConnection) (err error) {
		if c.first, err = c.Ask(time.Now().Add(b.Timeouts.Answer)); err != nil {
			return fmt.Errorf("flow: %v\nseen: %w\nwant: an answer", c.Flow, err)
		}
		return nil
	})
	if err != nil {
		st.close()
	}
	return st, err
}

// check asks again on each connection: the same endpoint must answer, and see the same client address.
func (st standing) check(p testbed.Timeouts) error {
	return testbed.Each(st, func(c *standingConnection) error {
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

// stream makes new connections until it is stopped: from several sources concurrently, one at a time from each.
type stream struct {
	stop   chan struct{}
	wg     sync.WaitGroup
	made   []atomic.Int64 // per source
	mu     sync.Mutex
	failed testbed.Failures
}

// streamed is a flow of a stream. wrong returns an error if the result is not the expected one.
type streamed struct {
	network.Attempt
	wrong func(network.Seen) error
}

// startStream starts a stream to a service whose endpoints may be any of the allowed ones. None of its connections may
// be refused, unanswered, or delayed by a lost packet.
func (b *bed) startStream(svc service, allowed ...string) *stream {
	return b.startStreams(one(svc), allowed...)
}

// startStreams is startStream to several services in turn.
func (b *bed) startStreams(services []service, allowed ...string) *stream {
	var groups [][]streamed
	for _, p := range append(paths([]string{localPod3, theNode, remotePod3}, toCluster), path{client, toVIP}) {
		var group []streamed
		for _, svc := range services {
			for _, f := range b.flows(svc, model.TCP, []path{p}) {
				f.About += ", one of a stream"
				group = append(group, streamed{f, func(seen network.Seen) error {
					if why := whyWrong(seen, f.Family(), allowed); why != "" {
						return fmt.Errorf("flow: %v\nseen: %v\nwant: %s", f, seen, why)
					}
					return nil
				}})
			}
		}
		groups = append(groups, group)
	}
	return b.stream(groups)
}

// whyWrong returns what was expected of a stream's connection, or "" if the result is right.
func whyWrong(s network.Seen, f model.Family, allowed []string) string {
	switch {
	case s.Verdict != oracle.Deliver:
		return "an answer, at every moment"
	case s.Lost:
		return "no packet to be lost"
	}
	for _, name := range allowed {
		if s.Endpoint == network.HostNamed(name).ServerAt(f) {
			return ""
		}
	}
	return fmt.Sprintf("an endpoint that is or was there: one of %v", allowed)
}

// stream starts a stream with a source for each group of flows.
func (b *bed) stream(groups [][]streamed) *stream {
	st := &stream{stop: make(chan struct{}), made: make([]atomic.Int64, len(groups))}
	try, timeouts := b.Try, b.Timeouts.Timeouts // The testbed changes while the stream runs.
	for i, group := range groups {
		st.wg.Go(func() {
			// The rate limits the number of connection-tracking entries.
			pace := time.NewTicker(2 * time.Millisecond)
			defer pace.Stop()
			for count := 0; ; count++ {
				select {
				case <-st.stop:
					return
				case <-pace.C:
				}
				next := group[count%len(group)]
				seen := try(next.Attempt, timeouts)
				st.made[i].Add(1)
				why := next.wrong(seen)
				st.mu.Lock()
				st.failed.Add(why)
				st.mu.Unlock()
			}
		})
	}
	return st
}

// await waits until each source has made n more connections, or until ctx ends.
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

// until waits for a time, and until the stream has gone on after it.
func (st *stream) until(ctx context.Context, over <-chan time.Time) error {
	select {
	case <-over:
		return st.await(ctx, 3)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// during calls f and then stops the stream. It returns the stream's error, otherwise the error of f.
func (st *stream) during(f func() error) error {
	err := f()
	close(st.stop)
	st.wg.Wait()
	if failed := st.failed.Err(); failed != nil {
		return failed
	}
	return err
}
