package brain

import (
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// introduce sends the first batch of a stream, as little as the client needs:
//
//	it has the digest of the newest version       RESUMED
//	it has that of a version that is remembered   DIFF from there
//	it has a revision of this server, and none    DIFF from there
//	or another version of digests
//	it has another digest, of the same cluster    DIFF with the services that have changed since, see sinceMark
//	it has another digest                         COMPARE, then DIFF with the services that differ
//	it has nothing                                RESET
//	it has another state, which is newer          LATER, see goesBack
//
// The last two cost work for each client, so only some clients are served at a time. Clients that resume never wait for
// them.
func (c *session) introduce(view nodeView, b *batches, resume *remotev1.Resume) error {
	d := resume.GetDigest()
	shared, ok := wire.ParseDigest(d.GetShared())
	comparable := ok && d.GetVersion() == wire.DigestVersion
	c.server.mu.Lock()
	var from *version
	if comparable {
		from = view.class.find(func(v *version) bool { return v.root == shared })
	} else if resume.GetInstanceID() == c.server.instanceOf(view.class) {
		// The version that was the newest at that revision: find goes back from the newest.
		from = view.class.find(func(v *version) bool { return v.revision <= resume.GetRevision() })
	}
	c.server.mu.Unlock()
	own, _ := wire.ParseDigest(d.GetOwn())
	switch {
	case comparable && from == view.version && own == view.ownDigest():
		c.server.metrics.batches.WithLabelValues("resumed").Inc()
		return c.sendResumed(view)
	case c.goesBack(view):
		return c.refuse(view, "behind", &remotev1.Update{Behind: true},
			status.Error(codes.Unavailable, "this server lags behind the client: ask another one"))
	case from != nil:
		c.server.metrics.batches.WithLabelValues("resumed_diff").Inc()
		var changes *batch
		if from != view.version {
			changes = c.server.difference(c.ctx, b, from, view.version)
		}
		return c.sendBatch(remotev1.Kind_DIFF, changes, nodeView{}, view, true)
	}
	if since := c.sinceMark(view, comparable); since != nil {
		c.server.metrics.batches.WithLabelValues("resumed_diff").Inc()
		c.verify = true
		return c.sendBatch(remotev1.Kind_DIFF, c.changedSince(view, b, since), nodeView{}, view, true)
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
	return c.sendBatch(remotev1.Kind_RESET, c.server.difference(c.ctx, b, nil, view.version), nodeView{}, view, true)
}

// sinceMark returns the newest version that contains nothing which the client's state does not, if this server has seen
// all that the client has: then the two can differ only in services that have changed here since that version. nil: there
// is none. The client's state comes from another server, whose versions begin and end elsewhere. Should that have watched
// another cluster, or the same before it was restored, a heartbeat says so before the next change.
func (c *session) sinceMark(view nodeView, comparable bool) *version {
	_, class, _ := strings.Cut(c.resume.GetInstanceID(), "-")
	mark, seen := wire.MarkOf(c.seen), view.progress.seen
	if !comparable || class != view.class.id {
		return nil
	}
	for kind := range mark {
		if kind != wire.ServiceCIDRs && mark[kind] == 0 || seen[kind] < mark[kind] {
			return nil
		}
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return view.class.find(func(v *version) bool {
		for kind, changed := range v.progress.changed {
			if changed > mark[kind] {
				return false
			}
		}
		return true
	})
}

// changedSince returns the services that have changed since a version, whole, also those that have changed back: the
// client may have any of their states in between.
func (c *session) changedSince(view nodeView, b *batches, since *version) *batch {
	return b.wholeSince(since, func() (state *sink.Snapshot, gone, stale []model.ServiceName, ok bool) {
		waves, _, okWaves := c.server.deltasBetween(since, view.version)
		state, ok = c.server.stateOf(c.ctx, view.version)
		if !ok || !okWaves {
			return nil, nil, nil, false
		}
		names := map[model.ServiceName]struct{}{}
		for _, wave := range waves {
			for i := range wave {
				names[wave[i].Name] = struct{}{}
			}
		}
		for _, name := range slices.SortedFunc(maps.Keys(names), model.ServiceName.Compare) {
			if state.Service(name) == nil {
				gone = append(gone, name)
			} else {
				stale = append(stale, name)
			}
		}
		return state, gone, stale, true
	})
}

func (c *session) sendResumed(view nodeView) error {
	u := c.opening(remotev1.Kind_RESUMED, view)
	u.Sync = &remotev1.Sync{Revision: view.revision, Seen: view.progress.changed.Since(wire.Mark{})}
	c.sending(view)
	return c.stream.SendMsg(u)
}

const (
	// maxTurn is how long a slow client can keep its turn while it is sent a full state.
	maxTurn = 10 * time.Second
	// maxTurns is how many turns, and places in the queue, the clients of one party have: that of a connection which
	// broke may not be free yet.
	maxTurns = 2
)

// turn waits until the client may be sent a full state, first come, first served, as channels are. If that takes too
// long, or the party has enough turns, the client is told to come again later, and release is nil.
func (c *session) turn(view nodeView) (release func(), err error) {
	if !c.countTurn(1) {
		return nil, c.comeLater(view)
	}
	timer := time.NewTimer(c.server.opts.limits.maxWait)
	defer timer.Stop()
	select {
	case c.server.slots <- struct{}{}:
	case <-c.ctx.Done():
		c.countTurn(-1)
		return nil, c.ctx.Err()
	case <-timer.C:
		c.countTurn(-1)
		return nil, c.comeLater(view)
	}
	free := sync.OnceFunc(func() { <-c.server.slots })
	slow := time.AfterFunc(maxTurn, free)
	return func() {
		slow.Stop()
		free()
		c.countTurn(-1)
	}, nil
}

// countTurn counts a turn more or less of the client's party, and returns false if it has enough.
func (c *session) countTurn(by int) bool {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return count(s.turns, c.party(), by, maxTurns)
}

// comeLater tells the client to come again later. It returns the error that ends the stream.
func (c *session) comeLater(view nodeView) error {
	return c.refuse(view, "later", &remotev1.Update{RetryAfterMillis: uint32(later().Milliseconds())},
		status.Error(codes.ResourceExhausted, "too many clients need a full state: try again later"))
}

// refuse sends a client away. It returns the error that ends the stream.
func (c *session) refuse(view nodeView, metric string, how *remotev1.Update, why error) error {
	u := c.opening(remotev1.Kind_LATER, view)
	u.RetryAfterMillis, u.Behind = how.RetryAfterMillis, how.Behind
	c.server.metrics.batches.WithLabelValues(metric).Inc()
	if err := c.stream.SendMsg(u); err != nil {
		return err
	}
	return why
}

// goesBack reports whether the client would go backwards if it were sent a view: it has another state, which another
// server has made from what this one has not seen yet.
func (c *session) goesBack(view nodeView) bool {
	itsOwn := strings.HasPrefix(c.resume.GetInstanceID(), c.server.instance+"-")
	if itsOwn || !view.progress.seen.Behind(wire.MarkOf(c.seen)) {
		return false
	}
	return !proto.Equal(c.resume.GetDigest(), view.digest())
}

// catchUp waits until the server has seen what the client knows, for a short time, and returns the newest view.
func (c *session) catchUp() (view nodeView, b *batches, ok bool, err error) {
	timer := time.NewTimer(c.server.opts.limits.maxCatchUp)
	defer timer.Stop()
	for {
		advanced := c.server.nextProgress()
		if view, b, ok, err = c.newest(); err != nil || !ok || !c.goesBack(view) {
			return view, b, ok, err
		}
		select {
		case <-advanced:
		case <-timer.C:
			return view, b, ok, nil
		case <-c.ctx.Done():
			return view, b, false, c.ctx.Err()
		}
	}
}

// compare finds out which services differ, and sends them whole.
func (c *session) compare(view nodeView, b *batches) error {
	answer, err := c.ask(view, &remotev1.Compare{})
	if err != nil {
		return err
	}
	theirs, ok := wire.ParseBuckets(answer.GetBuckets())
	if !ok {
		return status.Errorf(codes.InvalidArgument, "the bucket digests have %d bytes", len(answer.GetBuckets()))
	}
	var differ []uint32
	for i := range theirs {
		if theirs[i] != b.buckets[i] {
			differ = append(differ, uint32(i))
		}
	}
	reset := func() error {
		return c.sendBatch(remotev1.Kind_RESET, c.server.difference(c.ctx, b, nil, view.version), nodeView{}, view, true)
	}
	if len(differ) > wire.NumBuckets*3/4 { // comparing costs more than the full state, which is encoded once for all
		return reset()
	}
	state, ok := c.server.stateOf(c.ctx, view.version)
	if !ok {
		return tooOld()
	}
	ours := c.server.digestsOf(view.class).ServiceDigests(state, differ)
	var gone []model.ServiceName
	for some := range c.server.portions(ours, differ) {
		if answer, err = c.ask(view, &remotev1.Compare{Buckets: some}); err != nil {
			return err
		}
		for _, s := range answer.GetServices() {
			name := model.ServiceName{Namespace: s.GetNamespace(), Name: s.GetName()}
			d, ok := wire.ParseDigest(s.GetDigest())
			if !ok {
				return status.Errorf(codes.InvalidArgument, "the digest of service %v has %d bytes", name,
					len(s.GetDigest()))
			}
			if our, there := ours[name]; !there {
				gone = append(gone, name)
			} else if our == d {
				delete(ours, name)
			}
		}
	}
	if mostOf(ours, state) {
		return reset()
	}
	changes := b.replacing(state, gone, slices.Collect(maps.Keys(ours)))
	return c.sendBatch(remotev1.Kind_DIFF, changes, nodeView{}, view, true)
}

// digestsOf returns the digests of services that are known in a class. It keeps them as long as they are asked for.
func (s *Server) digestsOf(c *class) *wire.KnownDigests {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.digests == nil {
		c.digests = &wire.KnownDigests{}
	}
	c.digestsUsed = time.Now()
	return c.digests
}

// mostOf reports whether some services are most of a state.
func mostOf[T any](some map[model.ServiceName]T, state *sink.Snapshot) bool {
	part, all := 0, 0
	for e := range state.Services() {
		n := 1 + len(e.Endpoints)
		all += n
		if _, in := some[e.Service.Name]; in {
			part += n
		}
	}
	return part > all*3/4
}

// portions divides buckets so that the digests of their services are of a limited size, for the services that this
// server knows.
func (s *Server) portions(ours map[model.ServiceName]wire.Digest, buckets []uint32) iter.Seq[[]uint32] {
	const each = 2*4 + 2 + 16 // bytes, besides the names: lengths and tags, and the digest
	var size [wire.NumBuckets]int
	for name := range ours {
		size[wire.BucketOf(name)] += each + len(name.Namespace) + len(name.Name)
	}
	return func(yield func([]uint32) bool) {
		for rest := buckets; len(rest) > 0; {
			n, sum := 1, size[rest[0]]
			for ; n < len(rest) && sum+size[rest[n]] <= s.opts.limits.maxDigests; n++ {
				sum += size[rest[n]]
			}
			if !yield(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
	}
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
		return nil, status.Error(codes.DeadlineExceeded, "no digests were received")
	}
}

// later is how long a client is told to wait that did not get its turn.
func later() time.Duration { return time.Second + rand.N(4*time.Second) }
