package brain

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// fleetFloor is what gRPC and TLS take alone, with the options of a Server: for each client a connection and a stream;
// for each change a message of a usual size, and its acknowledgement. No server on gRPC takes less, so it tells what of
// BenchmarkFleet is ours. It returns the milliseconds of a change, 0 if that was not asked for.
func fleetFloor(b *testing.B, size fleetSize, ca authority) (change float64) {
	size.full = false // it has no goals
	size.Bare = true
	server := startFleetServer(b, size.fleetSpec, ca)
	defer server.kill()
	f := newFleet(b, ca, size.clients)
	defer f.disconnect()
	f.connect(b, f.clients[:len(fleetZones)], server.address, 1)
	empty := server.do(b, doCollect, 0)
	f.connect(b, f.clients[len(fleetZones):], server.address, 32)
	server.settled(b)
	b.Run("Memory", func(b *testing.B) {
		var now fleetUsage
		for b.Loop() {
			now = server.do(b, doCollect, 0)
		}
		now.report(b, empty, size.clients-len(fleetZones))
	})
	b.Run("Change", func(b *testing.B) {
		change = f.change(b, size, server, doReplace, func(*fleetClient) bool { return true })
	})
	return change
}

// report reports the memory for each of the clients that came since.
func (u fleetUsage) report(b *testing.B, since fleetUsage, clients int) {
	n := float64(clients)
	b.ReportMetric(float64(u.RSS-since.RSS)/n/1024, "KB/client")
	b.ReportMetric(float64(u.Heap-since.Heap)/n/1024, "heap-KB/client")
	b.ReportMetric(float64(u.Stacks-since.Stacks)/n/1024, "stack-KB/client")
	b.ReportMetric(float64(u.Goroutines-since.Goroutines)/n, "goroutines/client")
}

// bareBrain does the least that a server can do for a change.
type bareBrain struct {
	remotev1.UnimplementedBrainServer
	message     *wire.Frame
	sent, acked atomic.Int64

	mu      sync.Mutex
	streams []grpc.BidiStreamingServer[remotev1.Request, remotev1.Update]
}

func (s *bareBrain) Watch(stream grpc.BidiStreamingServer[remotev1.Request, remotev1.Update]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	s.sent.Add(1)
	if err := stream.SendMsg(s.message); err != nil {
		return err
	}
	s.mu.Lock()
	s.streams = append(s.streams, stream)
	s.mu.Unlock()
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		s.acked.Add(1)
	}
}

// change sends every client a message.
func (s *bareBrain) change() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stream := range s.streams {
		s.sent.Add(1)
		if err := stream.SendMsg(s.message); err != nil {
			return err
		}
	}
	return nil
}

func (s *bareBrain) usage() fleetUsage {
	u := readProcess()
	s.mu.Lock()
	defer s.mu.Unlock()
	u.Clients, u.Behind = len(s.streams), int(s.sent.Load()-s.acked.Load())
	return u
}

// runBareServer is the process of a bareBrain.
func runBareServer(config *tls.Config, in *json.Decoder, out *json.Encoder) error {
	codec, err := wire.NewCodec()
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	change := &remotev1.ServiceChange{Namespace: "team-42", Name: "service-1042",
		Endpoints: []*remotev1.Endpoint{{Port: "http", Protocol: remotev1.Protocol_TCP, Address: []byte{11, 0, 0, 1},
			TargetPort: 8080, Node: "node-0042", Sets: 1, Conditions: 3}},
		Removed: []*remotev1.Endpoint{{Port: "http", Protocol: remotev1.Protocol_TCP, Address: []byte{10, 0, 0, 1},
			TargetPort: 8080}}}
	s := &bareBrain{message: wire.Encode(&remotev1.Update{Kind: remotev1.Kind_DIFF,
		Services: []*remotev1.ServiceChange{change}, Sync: &remotev1.Sync{Revision: 1000}})}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	server := newGRPCServer(credentials.NewTLS(config), codec, time.Minute)
	defer server.Stop()
	remotev1.RegisterBrainServer(server, s)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	return serveCommands(in, out, ln.Addr().String(), s.usage, func(command fleetCommand) error {
		select {
		case err := <-failed:
			return err
		default:
		}
		if command.Do == doReplace {
			return s.change()
		}
		return nil
	})
}
