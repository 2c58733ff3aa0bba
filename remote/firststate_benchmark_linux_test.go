package remote

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// objectSource is a watch.Source of objects that do not change.
type objectSource []metav1.Object

func (s objectSource) Run(ctx context.Context, _ string, h watch.Handler) error {
	for _, o := range s {
		h.Update(watch.Change{Object: o})
	}
	h.Synced()
	<-ctx.Done()
	return nil
}

// firstState returns the messages of the first state of a node, as a server of services with 10 endpoints each sends
// them.
func firstState(b *testing.B, services int) (messages []wire.Message) {
	address := func(first byte, n int) string {
		return netip.AddrFrom4([4]byte{first, byte(n >> 16), byte(n >> 8), byte(n)}).String()
	}
	node := func(i int) string { return fmt.Sprintf("node-%04d", i) }
	nodes := services / 2
	var objects objectSource
	for i := range nodes {
		objects = append(objects, kube.Node(node(i)).Zone("zone-"+string("abc"[i%3])).InternalIP(address(192, i)).
			PodCIDR(address(10, i<<8)+"/24").Build())
	}
	for i := range services {
		name := fmt.Sprintf("team-%d/service-%d", i%100, i)
		slice := kube.EndpointSlice(name).Port("http", 8080)
		for e := range 10 {
			slice.Endpoint(address(10, i*10+e)).OnNode(node((i*10 + e) % nodes))
		}
		objects = append(objects, kube.Service(name).ClusterIP(address(100, i)).
			Label("app", fmt.Sprintf("app-%d", i)).Port("http", 80).Build(), slice.Build())
	}
	ctx, cancel := context.WithCancel(quiet(b))
	server, err := brain.New(ctx, brain.Options{Source: objects})
	require.NoError(b, err)
	target := socket(b)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = server.Run(ctx) })
	wg.Go(func() { _ = server.Serve(ctx, listen(b, target), brain.ServeOptions{}) })
	require.Eventually(b, func() bool { return server.Ready() == nil }, testTimeout, time.Millisecond)
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer conn.Close()
	codec, err := wire.NewCodec()
	require.NoError(b, err)
	stream, err := remotev1.NewBrainClient(conn).Watch(ctx, grpc.ForceCodecV2(wire.ClientCodec{Codec: codec}))
	require.NoError(b, err)
	require.NoError(b, stream.Send(&remotev1.Request{Hello: &remotev1.Hello{Node: node(0)}}))
	for {
		var m wire.Message
		require.NoError(b, stream.RecvMsg(&m))
		messages = append(messages, m)
		u, err := new(wire.Decoder).Update(m, func([]byte) ([]byte, error) { return nil, nil }, &wire.Batch{})
		require.NoError(b, err)
		if u.Sync != nil {
			return messages
		}
	}
}

// processCPU is the CPU time of this process, in user and kernel mode.
func processCPU() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkFirstState measures how a client processes its first state, from the messages to the end of its sink's Sync,
// which does nothing itself. The digest, which a client computes at the first heartbeat, is measured separately.
// Package brain has a benchmark of the server's part.
func BenchmarkFirstState(b *testing.B) {
	services := 100
	if os.Getenv("KPL_BENCH_FULL") != "" {
		services = 10_000
	}
	messages := firstState(b, services)
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
		milliseconds := float64(cpu.Microseconds()) / 1000 / float64(n)
		b.ReportMetric(float64(bytes), "bytes")
		b.ReportMetric(milliseconds, "cpu-ms")
		b.ReportMetric(float64(digest.Microseconds())/1000/float64(n), "digest-ms")
		if missed := bytes > 1<<20 || milliseconds > 150; missed && services > 100 && os.Getenv("KPL_GOALS") != "" {
			b.Errorf("%d bytes and %.0f ms: the goals are 1 MB and 150 ms", bytes, milliseconds)
		}
	})
}
