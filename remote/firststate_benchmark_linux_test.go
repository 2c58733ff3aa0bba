package remote

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// recorded is a stream that keeps the messages of a server.
type recorded struct {
	stream
	messages [][]byte
}

func (r *recorded) SendMsg(m any) error {
	r.messages = append(r.messages, m.(*frame).pieces.Materialize())
	return nil
}

// BenchmarkFirstState is a node's first state: what the server does for the first client of a class, and for another
// one, and what each client does from the messages to the end of its sink's Sync, which does nothing itself. A client
// works out the digest when the first heartbeat comes: that is counted apart.
func BenchmarkFirstState(b *testing.B) {
	size := benchmarkSize()
	server, err := NewServer(quiet(b), ServerOptions{Source: newCluster()})
	require.NoError(b, err)
	for _, o := range size.objects() {
		serverHandler{server}.Update(watch.Change{Object: o})
	}
	serverHandler{server}.Synced()
	r := &replica{Server: server}
	reset := func(b *testing.B, fresh bool) [][]byte {
		stream := &recorded{}
		s := &session{server: server, node: fleetNode(0), stream: stream, ctx: b.Context()}
		require.NoError(b, r.join(s, nodeOptions{}))
		defer r.leave(s)
		view, batches, _, err := s.newest()
		require.NoError(b, err)
		if fresh {
			batches = newBatches(batches.buckets)
		}
		require.NoError(b, s.sendBatch(remotev1.Kind_RESET, server.difference(batches, nil, view.version), nodeView{}, view,
			true))
		return stream.messages
	}
	messages := reset(b, false)
	for name, fresh := range map[string]bool{"Encode": true, "EncodeAgain": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				reset(b, fresh)
			}
		})
	}
	server, r, reset = nil, nil, nil // on a node, there is none whose memory the garbage collector has to go through
	b.Run("Client", func(b *testing.B) {
		bytes := 0
		for _, m := range messages {
			bytes += len(m)
		}
		var cpu, digest time.Duration
		n := 0
		for b.Loop() {
			n++
			start := processCPU()
			target := sink.NewFullState(nil)
			feed, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
			require.NoError(b, err)
			c := &conversation{dialer: &dialer{client: feed, handler: &nodeHandler{end: func() {}},
				log: klog.FromContext(quiet(b))}}
			for _, m := range messages {
				require.NoError(b, c.take(b.Context(), m))
			}
			require.True(b, feed.Flush(target).Any())
			require.NoError(b, target.Sync(b.Context()))
			end := processCPU()
			cpu += end - start
			require.NotNil(b, feed.view.digest())
			digest += processCPU() - end
		}
		size.goal(b, float64(bytes), "bytes", 1<<20)
		size.goal(b, float64(cpu.Microseconds())/1000/float64(n), "cpu-ms", 150)
		b.ReportMetric(float64(digest.Microseconds())/1000/float64(n), "digest-ms")
	})
}
