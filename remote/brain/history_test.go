package brain

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// snapshotter returns a sink that has a state, and what makes a snapshot of it.
func snapshotter(t *testing.T, from *sink.Snapshot) (*sink.FullState, func() *sink.Snapshot) {
	var made *sink.Snapshot
	full := sink.NewFullStateFrom(from, func(_ context.Context, s *sink.Snapshot) error {
		made = s
		return nil
	})
	return full, func() *sink.Snapshot {
		full.ForceResync()
		require.NoError(t, full.Sync(t.Context()))
		return made
	}
}

// requireSame checks that two states have the same content.
func requireSame(t *testing.T, want, got *sink.Snapshot, args ...any) {
	t.Helper()
	require.Equal(t, want.NumEndpoints(), got.NumEndpoints(), args...)
	for c := range got.ChangesSince(want) {
		require.Fail(t, "they differ", "%v %s", args, c.Name)
	}
}

// last returns the last of some versions, or nil.
func last(versions []*version) *version {
	if len(versions) == 0 {
		return nil
	}
	return versions[len(versions)-1]
}

// TestTheStateOfEveryKeptVersionIsKnown: after any changes and any earlier requests, the state of a kept version is the
// one computed from the cluster as it was then; and the sum of the changes from one version to another leads from there
// to there, and contains nothing that is the same in both.
func TestTheStateOfEveryKeptVersionIsKnown(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := testkit.Seeded(seed)
			s, err := New(quiet(t), Options{Source: newCluster()})
			require.NoError(t, err)
			h := serverHandler{s}
			for range 20 {
				h.Update(randomChange(d))
			}
			h.Synced()
			key := localstate.Class{Zone: "a"}
			require.NoError(t, s.makeClass(t.Context(), key))
			c := s.classes[key]
			wants, versions := []*sink.Snapshot{}, []*version{}
			for range 40 {
				for range 1 + d.IntN(4) {
					h.Update(randomChange(d))
				}
				s.publish(t.Context())
				full, snapshot := snapshotter(t, &sink.Snapshot{})
				s.base.ForClass(key).Flush(full)
				if n := len(versions); n > 0 && versions[n-1] == c.current {
					requireSame(t, wants[n-1], snapshot(), "a version for each change")
					continue
				}
				wants, versions = append(wants, snapshot()), append(versions, c.current)
				since, at := 0, slices.Index(versions, c.base.version)
				for _, v := range versions[at+1:] { // the first version is not among them, and takes nothing
					since += v.bytes
				}
				require.Equal(t, since, c.sinceBase)
				if testkit.OneIn(d, 4) {
					i := d.IntN(len(versions))
					got, ok := versions[i].state(t.Context())
					require.True(t, ok)
					requireSame(t, wants[i], got, i)
				}
			}
			for i := range versions {
				from := d.IntN(i + 1)
				waves, _, ok := versions[i].since(versions[from])
				require.True(t, ok)
				full, snapshot := snapshotter(t, wants[from])
				deltas := wire.Merge(waves)
				for i := range deltas {
					deltas[i].Apply(full, false)
				}
				requireSame(t, wants[i], snapshot(), "from", from, "to", i)
				changed := 0
				for c := range wants[i].ChangesSince(wants[from]) {
					require.Equal(t, c.Name, deltas[changed].Name)
					changed++
				}
				assert.Len(t, deltas, changed)
				_, _, ok = versions[from].since(versions[i])
				assert.Equal(t, from == i, ok, "a sum of changes leads forward")
			}
			all := append(slices.Clone(c.recent), c.current)
			for range 4 { // until nothing is left but the current one
				for _, v := range all {
					lasts := slices.DeleteFunc(slices.Clone(all[len(all)-1-len(c.recent)+c.resumable:]),
						func(w *version) bool { return w.root != v.root })
					require.Equal(t, last(lasts), c.withRoot(v.root))
					lasts = slices.DeleteFunc(slices.Clone(all[len(all)-1-len(c.recent)+c.resumable:]),
						func(w *version) bool { return w.revision >= v.revision })
					require.Equal(t, last(lasts), c.before(func(w *version) bool { return w.revision >= v.revision }))
				}
				_, ok := c.current.state(t.Context()) // the base follows, so that more can be forgotten
				require.True(t, ok)
				c.forget(time.Time{}, c.resumableBytes/2)
				c.forget(time.Now().Add(time.Hour*time.Duration(d.IntN(2))), c.resumableBytes/2)
			}
		})
	}
}

// A connected client that is so far behind that the changes since are no longer kept is asked to connect again.
func TestAClientThatIsTooFarBehindComesAgain(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, KeepBytes: -1, limits: limits{minInterval: -1}}, socket(t))
	hello := &remotev1.Hello{Node: "n1"}
	stream := rawStream(t, server.target, hello)
	first := receiveBatch(t, stream)
	revision := first[len(first)-1].Sync.Revision
	class := server.classNow()
	for i := range 3 {
		c.set(web("a", fmt.Sprintf("10.0.1.%d", i))...)
		server.publish(t.Context())
	}
	server.mu.Lock()
	assert.GreaterOrEqual(t, class.resumable, 2, "a publication that changes nothing forgets one more")
	assert.Len(t, class.recent, 3, "for those that are connected")
	server.mu.Unlock()
	sendAck(t, stream, revision)
	batch := receiveBatch(t, stream)
	assert.Equal(t, remotev1.Kind_DIFF, batch[0].Kind)

	c.set(web("a", "10.0.2.1")...)
	server.publish(t.Context())
	forget := func() {
		server.mu.Lock()
		defer server.mu.Unlock()
		class.forget(time.Now().Add(time.Hour), 0)
	}
	forget()
	_, known := class.current.state(t.Context()) // the base follows
	require.True(t, known, "nothing is forgotten that this takes")
	forget()
	server.mu.Lock()
	assert.Empty(t, class.recent)
	assert.Zero(t, class.kept)
	assert.Zero(t, class.resumableBytes)
	server.mu.Unlock()
	sendAck(t, stream, batch[len(batch)-1].Sync.Revision)
	for {
		u, err := stream.Recv()
		require.NotErrorIs(t, err, io.EOF)
		if err != nil {
			assert.Equal(t, codes.Aborted, status.Code(err))
			break
		}
		require.Equal(t, remotev1.Kind_HEARTBEAT, u.Kind)
	}
}

// A client may keep a version in memory that the history has dropped, but not the deltas of that version.
func TestAVersionThatIsGoneKeepsNothing(t *testing.T) {
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h := serverHandler{s}
	h.Synced()
	key := localstate.Class{}
	require.NoError(t, s.makeClass(t.Context(), key))
	c := s.classes[key]
	var old []*version
	for i := range 4 {
		for _, o := range web("a", fmt.Sprintf("10.0.0.%d", i)) {
			h.Update(watch.Change{Object: o})
		}
		s.publish(t.Context())
		old = append(old, c.current)
		require.NotEmpty(t, c.current.deltas)
	}
	_, ok := c.current.state(t.Context())
	require.True(t, ok)
	c.forget(time.Now().Add(time.Hour), 0)
	require.Empty(t, c.recent)
	for _, v := range old {
		assert.Empty(t, v.deltas)
	}
}

// While a client connects, the version that it already has may be published here: it is then newer than the one that
// the client is about to be sent, and the difference leads back to that one.
func TestAClientHasWhatIsPublishedMeanwhile(t *testing.T) {
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h := serverHandler{s}
	h.Synced()
	set := func(address string) {
		for _, o := range web("a", address) {
			h.Update(watch.Change{Object: o})
		}
		s.publish(t.Context())
	}
	set("10.0.0.1")
	stream := &heldStream{}
	c := &client{server: &s.common, node: "n1", stream: stream, ctx: t.Context(), news: true}
	require.NoError(t, s.join(c, localstate.Options{}))
	defer s.leave(c)
	require.True(t, c.begin())
	view, b, ok, err := c.newest()
	require.NoError(t, err)
	require.True(t, ok)
	set("10.0.0.2")
	has := view
	has.version = view.history.current
	require.NotEqual(t, has.root, view.root)
	require.NoError(t, c.introduce(view, b, &remotev1.Resume{Digest: has.digest()}))
	syncs, _ := stream.sent()
	require.Len(t, syncs, 1)
	assert.Equal(t, view.revision, syncs[0].Revision)
	changes := b.difference(t.Context(), has.version, view.version)
	require.Len(t, changes.chunks, 1)
	var got wire.Batch
	_, err = new(wire.Decoder).Update(changes.chunks[0].Bytes(), gunzip, &got)
	require.NoError(t, err)
	require.Len(t, got.Services[0], 1)
	assert.Equal(t, "10.0.0.1", got.Services[0][0].Endpoints[0].Target.Addr().String())
	assert.Equal(t, "10.0.0.2", got.Services[0][0].Removed[0].Target.Addr().String())
}

// The number of collected trigger times is limited to that of a batch, however long a history is.
func TestFewTriggerTimesOfALongHistory(t *testing.T) {
	versions := make([]*version, 1000)
	for i := range versions {
		versions[i] = &version{}
		versions[i].triggers.IPv4 = slices.Repeat([]time.Time{time.Unix(int64(i), 0)}, wire.MaxTriggers-1)
	}
	times := triggersOf(versions).IPv4
	assert.Equal(t, append(slices.Clone(versions[0].triggers.IPv4), time.Unix(1, 0)), times)
	assert.Less(t, cap(times), 10*wire.MaxTriggers)
}

// Trigger times count towards the kept bytes.
func TestTriggerTimesAreKeptBytes(t *testing.T) {
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h := serverHandler{s}
	h.Synced()
	key := localstate.Class{}
	require.NoError(t, s.makeClass(t.Context(), key))
	set := func(address string, trigger time.Time) (kept int) {
		for _, o := range web("a", address) {
			if _, is := o.(*discoveryv1.EndpointSlice); is && !trigger.IsZero() {
				o.SetAnnotations(map[string]string{
					corev1.EndpointsLastChangeTriggerTime: trigger.Format(time.RFC3339Nano)})
			}
			h.Update(watch.Change{Object: o})
		}
		s.publish(t.Context())
		return s.classes[key].current.bytes
	}
	set("10.0.0.1", time.Time{})
	without, with := set("10.0.0.2", time.Time{}), set("10.0.0.3", time.Now())
	require.NotEmpty(t, s.classes[key].current.triggers.IPv4)
	assert.Equal(t, without+int(unsafe.Sizeof(time.Time{})), with)
}

// NodeVIPs that only older versions have count towards the kept bytes.
func TestOldNodeVIPsAreKeptBytes(t *testing.T) {
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h := serverHandler{s}
	for _, o := range append(baseObjects(), listing("b", "192.0.2.2", "192.0.2.3", "198.51.100.1")) {
		h.Update(watch.Change{Object: o})
	}
	h.Synced()
	key := localstate.Class{}
	require.NoError(t, s.makeClass(t.Context(), key))
	set := func(address string) (kept int) {
		for _, o := range web("a", address) {
			h.Update(watch.Change{Object: o})
		}
		s.publish(t.Context())
		return s.classes[key].current.bytes
	}
	set("10.0.0.1")
	same := set("10.0.0.2")
	h.Update(watch.Change{Object: baseObjects()[2], Deleted: true})
	assert.Equal(t, same+2*nodeVIPBytes, set("10.0.0.3"))
	assert.Equal(t, same, set("10.0.0.4"))
	h.Update(watch.Change{Object: baseObjects()[1], Deleted: true})
	assert.Equal(t, same+nodeVIPBytes, set("10.0.0.5"))
}

// classNow returns the only class of the server.
func (r *replica) classNow() *group {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.classes {
		return c
	}
	return nil
}
