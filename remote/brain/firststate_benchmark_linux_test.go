package brain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// recorded is a stream that keeps the messages of a server.
type recorded struct {
	stream
	messages [][]byte
}

func (r *recorded) SendMsg(m any) error {
	r.messages = append(r.messages, m.(*wire.Frame).Bytes())
	return nil
}

// BenchmarkFirstState is a node's first state: what the server does for the first client of a class, and for another
// one. What a client does is a benchmark of package remote.
func BenchmarkFirstState(b *testing.B) {
	size := benchmarkSize()
	server, err := New(quiet(b), Options{Source: newCluster()})
	require.NoError(b, err)
	for _, o := range size.objects() {
		serverHandler{server}.Update(watch.Change{Object: o})
	}
	serverHandler{server}.Synced()
	r := &replica{Server: server}
	reset := func(b *testing.B, fresh bool) [][]byte {
		stream := &recorded{}
		s := &client{server: &server.common, node: fleetNode(0), stream: stream, ctx: b.Context()}
		require.NoError(b, r.join(s, localstate.Options{}))
		defer r.leave(s)
		view, batches, _, err := s.newest()
		require.NoError(b, err)
		if fresh {
			batches = newBatches(batches.buckets, batches.compressors)
		}
		full := batches.difference(b.Context(), nil, view.version)
		require.NoError(b, s.sendBatch(remotev1.Kind_RESET, full, nodeView{}, view, true))
		return stream.messages
	}
	reset(b, false)
	for name, fresh := range map[string]bool{"Encode": true, "EncodeAgain": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				reset(b, fresh)
			}
		})
	}
}
