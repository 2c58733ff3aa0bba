package remote

import (
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// introduce sends the first batch of a stream, as little as the client needs:
//
//	it has the digest of the newest version       RESUMED
//	it has that of a version that is remembered   DIFF from there
//	it has a revision of this server, no digest   DIFF from there
//	it has another digest                         COMPARE, then DIFF with the services that differ
//	it has nothing                                RESET
//
// The last two cost work for each client, so only some clients are served at a time. Clients that resume never wait for
// them.
func (c *session) introduce(view nodeView, b *batches, resume *remotev1.Resume) error {
	d := resume.GetDigest()
	shared, ok := parseDigest(d.GetShared())
	comparable := ok && d.GetVersion() == digestVersion
	c.server.mu.Lock()
	var from *version
	if comparable {
		from = view.class.find(func(v *version) bool { return v.root == shared })
	} else if d == nil && resume.GetInstanceID() == c.server.instanceOf(view.class) {
		// The version that was the newest at that revision: find goes back from the newest.
		from = view.class.find(func(v *version) bool { return v.revision <= resume.GetRevision() })
	}
	c.server.mu.Unlock()
	own, _ := parseDigest(d.GetOwn())
	switch {
	case comparable && from == view.version && own == view.ownDigest():
		c.server.metrics.batches.WithLabelValues("resumed").Inc()
		return c.sendResumed(view)
	case from != nil:
		c.server.metrics.batches.WithLabelValues("resumed_diff").Inc()
		var changes *batch
		if from != view.version {
			changes = c.server.difference(b, from, view.version)
		}
		return c.sendBatch(remotev1.Kind_DIFF, changes, nodeView{}, view, true)
	}
	release, err := c.turn(view)
	if release == nil {
		return err
	}
	defer release()
	if comparable {
		c.server.metrics.batches.WithLabelValues("compared").Inc()
		return c.compare(view, b)
	}
	c.server.metrics.batches.WithLabelValues("reset").Inc()
	return c.sendBatch(remotev1.Kind_RESET, c.server.difference(b, nil, view.version), nodeView{}, view, true)
}

func (c *session) sendResumed(view nodeView) error {
	u := c.opening(remotev1.Kind_RESUMED, view)
	u.Sync = &remotev1.Sync{Revision: view.revision}
	c.mu.Lock()
	c.sent, c.busy, c.spoke = view, true, time.Now()
	c.mu.Unlock()
	return c.stream.SendMsg(u)
}

// maxTurn is how long a slow client can keep its turn while it is sent a full state.
const maxTurn = 10 * time.Second

// turn waits until the client may be sent a full state, first come, first served, as channels are. If that takes too
// long, the client is told to come again later, and release is nil.
func (c *session) turn(view nodeView) (release func(), err error) {
	timer := time.NewTimer(c.server.opts.limits.maxWait)
	defer timer.Stop()
	select {
	case c.server.slots <- struct{}{}:
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	case <-timer.C:
		u := c.opening(remotev1.Kind_LATER, view)
		u.RetryAfterMillis = uint32(later().Milliseconds())
		c.server.metrics.batches.WithLabelValues("later").Inc()
		if err := c.stream.SendMsg(u); err != nil {
			return nil, err
		}
		return nil, status.Error(codes.ResourceExhausted, "too many clients need a full state: come again later")
	}
	var once sync.Once
	free := func() { once.Do(func() { <-c.server.slots }) }
	slow := time.AfterFunc(maxTurn, free)
	return func() {
		slow.Stop()
		free()
	}, nil
}

// compare finds out which services differ, and sends them whole.
func (c *session) compare(view nodeView, b *batches) error {
	answer, err := c.ask(view, &remotev1.Compare{})
	if err != nil {
		return err
	}
	theirs, ok := parseBuckets(answer.GetBuckets())
	if !ok {
		return status.Errorf(codes.InvalidArgument, "the digests of buckets have %d bytes", len(answer.GetBuckets()))
	}
	var differ []uint32
	for i := range theirs {
		if theirs[i] != b.buckets[i] {
			differ = append(differ, uint32(i))
		}
	}
	if len(differ) > numBuckets*3/4 { // comparing digests costs more than the full state, which is encoded once for all
		return c.sendBatch(remotev1.Kind_RESET, c.server.difference(b, nil, view.version), nodeView{}, view, true)
	}
	var w chunkWriter
	if len(differ) > 0 {
		if answer, err = c.ask(view, &remotev1.Compare{Buckets: differ}); err != nil {
			return err
		}
		ours := serviceDigests(view.state, differ)
		for _, s := range answer.GetServices() {
			name := model.ServiceName{Namespace: s.GetNamespace(), Name: s.GetName()}
			d, ok := parseDigest(s.GetDigest())
			if !ok {
				return status.Errorf(codes.InvalidArgument, "the digest of service %v has %d bytes", name,
					len(s.GetDigest()))
			}
			if our, there := ours[name]; !there {
				w.service(&remotev1.ServiceChange{Namespace: name.Namespace, Name: name.Name, Deleted: true})
			} else if our == d {
				delete(ours, name)
			}
		}
		for name := range ours {
			w.service(encodeChange(sink.Change{Name: name, New: view.state.Service(name)}))
		}
	}
	return c.sendBatch(remotev1.Kind_DIFF, &batch{chunks: w.done()}, nodeView{}, view, true)
}

// maxAnswer is how long a client may take to answer, or to say Hello.
const maxAnswer = 20 * time.Second

// ask asks the client for digests.
func (c *session) ask(view nodeView, what *remotev1.Compare) (*remotev1.Digests, error) {
	u := c.opening(remotev1.Kind_COMPARE, view)
	u.Compare = what
	answer := make(chan *remotev1.Digests, 1)
	c.mu.Lock()
	c.answer, c.spoke = answer, time.Now()
	c.mu.Unlock()
	if err := c.stream.SendMsg(u); err != nil {
		return nil, err
	}
	timer := time.NewTimer(c.server.maxAnswer)
	defer timer.Stop()
	select {
	case digests := <-answer:
		return digests, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	case <-timer.C:
		return nil, status.Error(codes.DeadlineExceeded, "no digests came")
	}
}

// later is how long a client is told to wait that did not get its turn.
func later() time.Duration { return time.Second + rand.N(4*time.Second) }
