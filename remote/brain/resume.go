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

// introduce sends the first batch of a stream. It depends on what the client has, and is as small as possible:
//
//	a state that is newer, or knows newer Nodes   LATER, see goesBack
//	the digest of the newest version              RESUMED
//	the digest of a version that is kept          DIFF from there
//	a revision of this server, and no digest      DIFF from there
//	or one of another DigestVersion
//	another digest, of the same cluster           DIFF with the services changed since, see sinceMark
//	another digest                                COMPARE, then DIFF with the services that differ
//	nothing                                       RESET
//
// COMPARE and RESET cost work for each client, so a limited number of clients get them at a time. Clients that resume
// never wait for them.
func (c *client) introduce(view nodeView, b *batches, resume *remotev1.Resume) error {
	d := resume.GetDigest()
	shared, ok := wire.ParseDigest(d.GetShared())
	comparable := ok && d.GetVersion() == wire.DigestVersion
	c.server.mu.Lock()
	var from *version
	if comparable {
		from = view.history.withRoot(shared)
	} else if resume.GetInstanceID() == view.history.instance {
		// The newest version at that revision.
		from = view.history.before(func(v *version) bool { return v.revision > resume.GetRevision() })
	}
	c.server.mu.Unlock()
	own, _ := wire.ParseDigest(d.GetOwn())
	switch {
	case c.goesBack(view):
		return c.refuse(view, "behind", &remotev1.Update{Behind: true},
			status.Error(codes.Unavailable, "this server lags behind the client: ask another one"))
	case comparable && from == view.version && own == view.ownDigest():
		c.server.metrics.batches.WithLabelValues("resumed").Inc()
		return c.sendResumed(view)
	case from != nil:
		c.server.metrics.batches.WithLabelValues("resumed_diff").Inc()
		var changes *batch
		if from != view.version {
			changes = b.difference(c.ctx, from, view.version)
		}
		return c.sendBatch(remotev1.Kind_DIFF, changes, nodeView{}, view, true)
	}
	if since := c.sinceMark(view, comparable); since != nil {
		c.server.metrics.batches.WithLabelValues("resumed_diff").Inc()
		c.verify = true
		return c.sendBatch(remotev1.Kind_DIFF, c.changedSince(view, b, since), nodeView{}, view, true)
	}
	release, err := c.waitForSlot(view)
	if release == nil {
		return err
	}
	defer release()
	if comparable {
		c.server.metrics.batches.WithLabelValues("compared").Inc()
		return c.compare(view, b)
	}
	c.server.metrics.batches.WithLabelValues("reset").Inc()
	return c.sendBatch(remotev1.Kind_RESET, b.difference(c.ctx, nil, view.version), nodeView{}, view, true)
}

// sinceMark returns the newest version that contains nothing newer than the client's state, or nil if there is none or
// if this server has not seen everything that the client has. From such a version on, the two can only differ in
// services that have changed here. The client's state comes from another server, which has other versions. If that
// server watched another cluster, or the same one before it was restored, the next heartbeat reveals it before the next
// change.
func (c *client) sinceMark(view nodeView, comparable bool) *version {
	_, class, _ := strings.Cut(c.resume.GetInstanceID(), "-")
	mark, seen := wire.MarkOf(c.seen), view.progress.seen
	if !comparable || class != view.history.id {
		return nil
	}
	for kind := range mark {
		if kind != wire.ServiceCIDRs && mark[kind] == 0 || seen[kind] < mark[kind] {
			return nil
		}
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return view.history.before(func(v *version) bool {
		for kind, changed := range v.progress.changed {
			if changed > mark[kind] {
				return true
			}
		}
		return false
	})
}

// changedSince returns all services that have changed since a version, as a whole. It includes those that changed back,
// because the client may have any state in between.
func (c *client) changedSince(view nodeView, b *batches, since *version) *batch {
	return b.wholeSince(since, func() (state *sink.Snapshot, gone, stale []model.ServiceName, ok bool) {
		waves, _, okWaves := view.version.since(since)
		state, ok = view.version.state(c.ctx)
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

func (c *client) sendResumed(view nodeView) error {
	u := c.opening(remotev1.Kind_RESUMED, view)
	u.Sync = &remotev1.Sync{Revision: view.revision, NodeVIPs: view.progress.nodeVIPs,
		Seen: view.progress.changed.Since(wire.Mark{})}
	c.sending(view)
	return c.stream.SendMsg(u)
}

const (
	// maxSlotTime is how long a slow client can keep its slot while it is sent a full state.
	maxSlotTime = 10 * time.Second
	// maxSlotUsers is how many clients of one principal may hold a slot or wait for one: two, because the slot of a
	// connection that broke may not be free yet.
	maxSlotUsers = 2
)

// waitForSlot waits for a slot, without which no client is sent a full state, first come, first served. If that takes
// too long, or if too many clients of the principal have or want one, it tells the client to reconnect later, and
// release is nil.
func (c *client) waitForSlot(view nodeView) (release func(), err error) {
	users, p := &c.server.slotUsers, c.principal()
	if !users.add(p, maxSlotUsers) {
		return nil, c.comeLater(view)
	}
	timer := time.NewTimer(c.server.limits.maxWait)
	defer timer.Stop()
	select {
	case c.server.slots <- struct{}{}:
	case <-c.ctx.Done():
		users.done(p)
		return nil, c.ctx.Err()
	case <-timer.C:
		users.done(p)
		return nil, c.comeLater(view)
	}
	free := sync.OnceFunc(func() { <-c.server.slots })
	slow := time.AfterFunc(maxSlotTime, free)
	return func() {
		slow.Stop()
		free()
		users.done(p)
	}, nil
}

// comeLater tells the client to reconnect later. It returns the error that ends the stream.
func (c *client) comeLater(view nodeView) error {
	wait := time.Second + rand.N(4*time.Second)
	return c.refuse(view, "later", &remotev1.Update{RetryAfterMillis: uint32(wait.Milliseconds())},
		status.Error(codes.ResourceExhausted, "too many clients need a full state: try again later"))
}

// refuse tells the client to leave. It returns the error that ends the stream.
func (c *client) refuse(view nodeView, metric string, how *remotev1.Update, why error) error {
	u := c.opening(remotev1.Kind_LATER, view)
	u.RetryAfterMillis, u.Behind = how.RetryAfterMillis, how.Behind
	c.server.metrics.batches.WithLabelValues(metric).Inc()
	if err := c.stream.SendMsg(u); err != nil {
		return err
	}
	return why
}

// goesBack reports whether a view is older than what the client has: another server made its state, from changes that
// this server has not seen yet. A client that has waited long enough does not say what it has seen.
func (c *client) goesBack(view nodeView) bool {
	mark, seen := wire.MarkOf(c.seen), view.progress.seen
	if c.resumesHere() || !seen.Behind(mark) {
		return false
	}
	if !proto.Equal(c.resume.GetDigest(), view.digest()) {
		return true
	}
	// The NodeVIPs, which are in no digest, may be older.
	return view.progress.nodeVIPs != nil && seen[wire.Nodes] != 0 && seen[wire.Nodes] < mark[wire.Nodes]
}

// resumesHere reports whether this server made the state that the client has from an earlier stream.
func (c *client) resumesHere() bool {
	return strings.HasPrefix(c.resume.GetInstanceID(), c.server.instance+"-")
}

// catchUp waits a short time for the server to see what the client has seen, and returns the newest view.
func (c *client) catchUp() (view nodeView, b *batches, ok bool, err error) {
	timer := time.NewTimer(c.server.limits.maxCatchUp)
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

// compare finds the services that differ, and sends them as a whole.
func (c *client) compare(view nodeView, b *batches) error {
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
		return c.sendBatch(remotev1.Kind_RESET, b.difference(c.ctx, nil, view.version), nodeView{}, view, true)
	}
	if len(differ) > wire.NumBuckets*3/4 { // the full state costs less: it is encoded once for all clients
		return reset()
	}
	state, ok := view.version.state(c.ctx)
	if !ok {
		return tooOld()
	}
	ours := view.history.knownDigests().ServiceDigests(state, differ)
	var gone []model.ServiceName
	for some := range portions(ours, differ, c.server.limits.maxDigests) {
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

// mostOf reports whether some services are more than three quarters of a state.
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

// portions splits buckets into groups, so that the digests of a group's services take at most a number of bytes. It can
// only count the services that this server knows.
func portions(ours map[model.ServiceName]wire.Digest, buckets []uint32, most int) iter.Seq[[]uint32] {
	const each = 2*4 + 2 + 16 // bytes, besides the names: lengths and tags, and the digest
	var size [wire.NumBuckets]int
	for name := range ours {
		size[wire.BucketOf(name)] += each + len(name.Namespace) + len(name.Name)
	}
	return func(yield func([]uint32) bool) {
		for rest := buckets; len(rest) > 0; {
			n, sum := 1, size[rest[0]]
			for ; n < len(rest) && sum+size[rest[n]] <= most; n++ {
				sum += size[rest[n]]
			}
			if !yield(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
	}
}

// ask asks the client for digests.
func (c *client) ask(view nodeView, what *remotev1.Compare) (*remotev1.Digests, error) {
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
