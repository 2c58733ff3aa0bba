package brain

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// BenchmarkFailover measures how long clients are without a server after theirs is killed, or hangs. They are real
// clients, so the cluster is small: its state is one message, whatever the size. Run it with -benchtime 1x.
func BenchmarkFailover(b *testing.B) {
	size := benchmarkSize()
	size.Services, size.Endpoints = 20, 5
	ca := newAuthority(b)
	var servers []*fleetServer
	var targets []string
	for range 3 {
		s := startFleetServer(b, size.fleetSpec, ca)
		servers, targets = append(servers, s), append(targets, s.address)
	}
	ctx, cancel := context.WithCancel(quiet(b))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var clients []*health.Proxy
	for i := range size.clients {
		h := health.New(0)
		clients = append(clients, h)
		feed, err := remote.NewFeed(remote.Options{Targets: targets, TLS: ca.client(b, "system:node:"+fleetNode(i)),
			State: localstate.Options{NodeName: fleetNode(i)}})
		require.NoError(b, err)
		wg.Go(func() {
			err := kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: sink.NewFullState(nil), Health: h})
			if err != nil {
				b.Error(err)
			}
		})
	}
	for n := 0; n < size.clients; {
		n = 0
		for _, s := range servers {
			if usage := s.settled(b); usage.Behind == 0 {
				n += usage.Clients
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Run("Killed", func(b *testing.B) {
		failover(b, size, clients, servers[0], servers[0].kill, 5)
	})
	b.Run("Silent", func(b *testing.B) {
		failover(b, size, clients, servers[1], func() { _ = servers[1].cmd.Process.Signal(syscall.SIGSTOP) }, 45)
	})
}

// failover ends a server and waits until all of its clients have another one.
func failover(b *testing.B, size fleetSize, clients []*health.Proxy, server *fleetServer, end func(), goal float64) {
	for b.Loop() { // once
		affected := server.do(b, doUsage, 0).Clients
		start := time.Now()
		end()
		lost, took := make([]bool, len(clients)), []time.Duration(nil)
		for ; len(took) < affected; time.Sleep(5 * time.Millisecond) {
			require.Less(b, time.Since(start), 5*time.Minute)
			for i, c := range clients {
				switch connected := c.DisconnectedSince().IsZero(); {
				case !connected:
					lost[i] = true
				case lost[i]:
					lost[i] = false
					took = append(took, time.Since(start))
				}
			}
		}
		slices.Sort(took)
		b.ReportMetric(float64(affected), "clients")
		b.ReportMetric(took[len(took)/2].Seconds(), "p50-s")
		size.goal(b, took[len(took)*99/100].Seconds(), "p99-s", goal)
	}
}
