package brain

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// comparing is the stream of a client whose state is older than those that its server has kept.
type comparing struct {
	stream
	client   *client
	buckets  wire.Buckets
	services map[model.ServiceName]wire.Digest
	frames   []*wire.Frame // what it was sent
}

// oldClient is a client that has the state of a version.
func oldClient(t testing.TB, s *Server, v *version, buckets *wire.Buckets) *comparing {
	t.Helper()
	state, ok := v.state(t.Context())
	require.True(t, ok)
	var all []uint32
	for i := range uint32(wire.NumBuckets) {
		all = append(all, i)
	}
	return &comparing{buckets: *buckets, services: wire.ServiceDigests(state, all)}
}

func (c *comparing) SendMsg(m any) error {
	if f, ok := m.(*wire.Frame); ok {
		c.frames = append(c.frames, f)
		return nil
	}
	asked := m.(*remotev1.Update).Compare
	answer := &remotev1.Digests{}
	if len(asked.Buckets) == 0 {
		answer.Buckets = c.buckets.Bytes()
	}
	wanted := map[int]bool{}
	for _, b := range asked.Buckets {
		wanted[int(b)] = true
	}
	for name, d := range c.services {
		if wanted[wire.BucketOf(name)] {
			answer.Services = append(answer.Services,
				&remotev1.ServiceDigest{Namespace: name.Namespace, Name: name.Name, Digest: d.Bytes()})
		}
	}
	_, err := c.client.take(&remotev1.Request{Digests: answer})
	return err
}

// connect has a server compare the client's state with its newest.
func (c *comparing) connect(s *Server, of *group) error {
	s.mu.Lock()
	view := nodeView{version: of.current, progress: of.progress, node: &model.Node{}}
	b := of.batches
	s.mu.Unlock()
	c.client = &client{server: &s.common, node: "n1", stream: c, ctx: context.Background()}
	c.frames = nil
	return c.client.introduce(view, b, &remotev1.Resume{Digest: wire.DigestMessage(c.buckets.Root(), wire.Digest{})})
}

// hugeService is a server without clients, with some services and one of many endpoints.
func hugeService(t testing.TB, services, endpoints int) (h serverHandler, change func(i int)) {
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h = serverHandler{s}
	slice := func(i, last int) watch.Change {
		e := kube.EndpointSlice("default/huge").Port("http", 8080)
		for n := range 99 {
			e.Endpoint(fmt.Sprintf("10.%d.%d.%d", 1+i/250, i%250, n)).OnNode(fmt.Sprintf("n%d", n))
		}
		o := e.Endpoint(fmt.Sprintf("10.%d.%d.%d", 1+i/250, i%250, last)).OnNode("n99").Build()
		o.Name = fmt.Sprint("huge-", i)
		return watch.Change{Object: o}
	}
	h.Update(watch.Change{Object: kube.Service("default/huge").ClusterIP("10.96.0.1").Port("http", 80).Build()})
	for i := range services {
		for _, o := range web(fmt.Sprint("svc-", i), fmt.Sprintf("10.200.%d.%d", i/250, i%250)) {
			h.Update(watch.Change{Object: o})
		}
	}
	for i := range endpoints / 100 {
		h.Update(slice(i, 100))
	}
	h.Synced()
	return h, func(i int) {
		h.Update(slice(i%(endpoints/100), 101+i%100))
		s.publish(t.Context())
	}
}

// sent returns the names of the services that the client was sent.
func (c *comparing) sent(t *testing.T) (names []string) {
	for _, f := range c.frames {
		var u remotev1.Update
		require.NoError(t, proto.Unmarshal(f.Bytes(), &u))
		if u.Compressed != nil {
			unzip, err := gzip.NewReader(bytes.NewReader(u.Compressed))
			require.NoError(t, err)
			b, err := io.ReadAll(unzip)
			require.NoError(t, err)
			require.NoError(t, proto.Unmarshal(b, &u))
		}
		for _, s := range u.Services {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Clients that need the same batch share it. A client that lies about its state, and claims the digest of the others,
// affects only the batch that it gets itself.
func TestWhatIsComparedIsSharedByThoseWhoNeedTheSame(t *testing.T) {
	h, change := hugeService(t, 200, 100)
	key := localstate.Class{}
	require.NoError(t, h.makeClass(t.Context(), key))
	of := h.classes[key]
	old, buckets := of.current, *of.batches.buckets
	change(0)
	h.Update(watch.Change{Object: web("svc-7")[0], Deleted: true})
	h.publish(t.Context())
	of.resumable = len(of.recent) // it does not remember
	shared := func() int { return len(of.batches.compared) }

	liar := oldClient(t, h.Server, old, &buckets)
	honest := wire.BucketOf(name("huge"))
	other := (honest + 1) % wire.NumBuckets
	difference := of.batches.buckets[honest].Sub(buckets[honest])
	liar.buckets[honest] = liar.buckets[honest].Add(difference)
	liar.buckets[other] = liar.buckets[other].Sub(difference)
	liar.services[name("huge")] = liar.services[name("huge")].Add(difference)
	liar.services[name("made-up")] = wire.Digest{}
	require.Equal(t, buckets.Root(), liar.buckets.Root())
	require.NoError(t, liar.connect(h.Server, of))
	assert.NotContains(t, liar.sent(t), "huge")
	assert.Equal(t, 1, shared())
	for range 3 {
		client := oldClient(t, h.Server, old, &buckets)
		require.NoError(t, client.connect(h.Server, of))
		assert.Equal(t, []string{"huge", "svc-7"}, client.sent(t))
		assert.Equal(t, 2, shared())
	}
	for i := range 2 * maxCompared { // however many lies there are
		liar.services[name("svc-7")] = wire.Digest{}
		delete(liar.services, name(fmt.Sprint("made-up-", i-1)))
		for n := 0; ; n++ { // in the bucket that is asked for
			if made := name(fmt.Sprintf("made-up-%d-%d", i, n)); wire.BucketOf(made) == wire.BucketOf(name("svc-7")) {
				liar.services[made] = wire.Digest{}
				break
			}
		}
		require.NoError(t, liar.connect(h.Server, of))
	}
	assert.Equal(t, maxCompared, shared())
}

// BenchmarkCompare is what it costs the server that a client comes back with a state that it does not remember: a
// service of 50,000 endpoints has changed. Changing: each time, it has changed again since the client before.
func BenchmarkCompare(b *testing.B) {
	h, change := hugeService(b, 10_000, 50_000)
	key := localstate.Class{}
	require.NoError(b, h.makeClass(b.Context(), key))
	of := h.classes[key]
	client := oldClient(b, h.Server, of.current, of.batches.buckets)
	change(0)
	of.resumable = len(of.recent) // it does not remember
	for name, changing := range map[string]bool{"Quiet": false, "Changing": true} {
		b.Run(name, func(b *testing.B) {
			before := testutil.ToFloat64(h.metrics.batches.WithLabelValues("compared"))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if changing {
					b.StopTimer()
					change(1 + i)
					b.StartTimer()
				}
				require.NoError(b, client.connect(h.Server, of))
			}
			require.Greater(b, testutil.ToFloat64(h.metrics.batches.WithLabelValues("compared")), before)
		})
	}
}
