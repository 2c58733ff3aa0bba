package brain

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// The server of the fleet benchmarks is a process of its own, the test binary started again, so that its memory and CPU
// time are measured apart from those of its clients. It reads one JSON value for each command from its standard input,
// and writes one for each answer.

const fleetServerEnv = "KPL_REMOTE_FLEET_SERVER"

// fleetSpec says what a server is to serve.
type fleetSpec struct {
	Services, Endpoints, Nodes int
	Heartbeat                  time.Duration
	Churn                      bool          // change the cluster in revisions of Interval, see doChurn
	Interval                   time.Duration // limits.minInterval if Churn
	Keep                       time.Duration // 0: the default
	Bare                       bool          // serve as bareBrain does
	Cert, Key, CA              []byte        // DER
}

// fleetCommand is one of the constants below, and a number that tells changes apart.
type fleetCommand struct {
	Do    string
	N     int
	Churn fleetChurn
}

const (
	doUsage         = "usage"         // nothing but the answer
	doCollect       = "collect"       // collect garbage first
	doReplace       = "replace"       // one endpoint of a service by another, which concerns all nodes
	doReplaceInZone = "replaceInZone" // one that nodes of the first zone alone use
	doChurn         = "churn"         // many, from a time to another one
)

// fleetUsage is the answer, empty for changes.
type fleetUsage struct {
	Address           string // in the first answer
	CPU               time.Duration
	RSS, Heap, Stacks int64
	Goroutines        int
	Clients, Behind   int
	Batches           map[string]int // by kind
	Churned, Kept     int            // changes made by doChurn; bytes of older versions
	Revision          uint64         // the newest
	Delivered         []uint64       // batches acknowledged within 10 ms, 20 ms ... of their first change
}

var fleetZones = []string{"zone-a", "zone-b", "zone-c"}

func fleetNode(i int) string { return fmt.Sprintf("node-%04d", i) }

func fleetAddress(first byte, n int) string {
	return netip.AddrFrom4([4]byte{first, byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

// slice is the EndpointSlice of a service. Its first endpoint goes by generation.
func (s fleetSpec) slice(service, generation int) metav1.Object {
	b := kube.EndpointSlice(fmt.Sprintf("team-%d/service-%d", service%100, service)).Port("http", 8080)
	for e := range s.Endpoints {
		n := service*s.Endpoints + e
		address := fleetAddress(10, n)
		if e == 0 && generation > 0 {
			address, n = fleetAddress(11, generation), n+generation
		}
		b.Endpoint(address).OnNode(fleetNode(n % s.Nodes))
	}
	return b.Build()
}

// hintedSlice is that of a service whose endpoints are each for one zone, in which they are. Its first one, which is
// for the first zone, goes by generation.
func (s fleetSpec) hintedSlice(generation int) metav1.Object {
	b := kube.EndpointSlice("team-0/hinted").Port("http", 8080)
	for e := range 3 * len(fleetZones) {
		address := fleetAddress(12, e)
		if e == 0 {
			address = fleetAddress(13, generation)
		}
		b.Endpoint(address).OnNode(fleetNode(e)).ForZones(fleetZones[e%len(fleetZones)])
	}
	return b.Build()
}

func (s fleetSpec) objects() []metav1.Object {
	objects := []metav1.Object{kube.Service("team-0/hinted").ClusterIP("10.250.0.1").Port("http", 80).Build(),
		s.hintedSlice(0)}
	for i := range s.Nodes {
		objects = append(objects,
			kube.Node(fleetNode(i)).Zone(fleetZones[i%len(fleetZones)]).InternalIP(fleetAddress(192, i)).
				PodCIDR(fleetAddress(10, i<<8)+"/24").Build())
	}
	for i := range s.Services {
		objects = append(objects,
			kube.Service(fmt.Sprintf("team-%d/service-%d", i%100, i)).ClusterIP(fleetAddress(100, i)).
				Label("app", fmt.Sprintf("app-%d", i)).Port("http", 80).Build(), s.slice(i, 0))
	}
	return objects
}

// serveFleet is the server's process. It returns false in any other.
func serveFleet() bool {
	if os.Getenv(fleetServerEnv) == "" {
		return false
	}
	if err := runFleetServer(); err != nil {
		fmt.Fprintln(os.Stderr, "fleet server:", err)
		os.Exit(1)
	}
	return true
}

func runFleetServer() error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var spec fleetSpec
	if err := in.Decode(&spec); err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(spec.Key)
	if err != nil {
		return err
	}
	ca, err := x509.ParseCertificate(spec.CA)
	if err != nil {
		return err
	}
	config := &tls.Config{ClientCAs: x509.NewCertPool(),
		Certificates: []tls.Certificate{{Certificate: [][]byte{spec.Cert}, PrivateKey: key}}}
	config.ClientCAs.AddCert(ca)
	if spec.Bare {
		return runBareServer(config, in, out)
	}

	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	defer cancel()
	source := newCluster(at("1000", spec.objects()...)...) // as every object of an API server has one
	limits := limits{heartbeat: spec.Heartbeat, minInterval: -1, keep: spec.Keep}
	if spec.Churn {
		limits.minInterval = spec.Interval
	}
	server, err := New(ctx, Options{Source: source, limits: limits})
	if err != nil {
		return err
	}
	if spec.Churn {
		server.metrics.delivery = fineDelivery()
	}
	ln, err := Listen(ctx, "127.0.0.1:0", 0)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- server.Run(ctx) }()
	go func() { failed <- server.Serve(ctx, ln, ServeOptions{TLS: config}) }()
	for server.Ready() != nil {
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Millisecond):
		}
	}
	var churned atomic.Int64
	usage := func() fleetUsage {
		u := readUsage(server)
		if spec.Churn {
			u.readChurn(server)
			u.Churned = int(churned.Load())
		}
		return u
	}
	return serveCommands(in, out, ln.Addr().String(), usage,
		func(command fleetCommand) error {
			switch command.Do {
			case doReplace:
				source.set(spec.slice(command.N%spec.Services, 1+command.N))
			case doReplaceInZone:
				source.set(spec.hintedSlice(1 + command.N))
			case doChurn:
				go command.Churn.run(spec, source, &churned)
			}
			return nil
		})
}

// serveCommands sends the server's address to the benchmark, and answers its commands until it ends: requests for
// figures with usage, all others with do.
func serveCommands(in *json.Decoder, out *json.Encoder, address string, usage func() fleetUsage,
	do func(fleetCommand) error) error {
	answer := usage()
	answer.Address = address
	for {
		if err := out.Encode(answer); err != nil {
			return err
		}
		var command fleetCommand
		if err := in.Decode(&command); err != nil {
			return nil //nolint:nilerr // the benchmark has ended
		}
		answer = fleetUsage{}
		switch command.Do {
		case doCollect:
			collectGarbage()
			answer = usage()
		case doUsage:
			answer = usage()
		default:
			if err := do(command); err != nil {
				return err
			}
		}
	}
}

func readUsage(s *Server) fleetUsage {
	u := readProcess()
	clients := s.Clients()
	u.Clients = len(clients)
	for _, c := range clients {
		if !c.BehindSince.IsZero() || c.Revision == 0 {
			u.Behind++
		}
	}
	u.Batches = map[string]int{}
	r := replica{Server: s}
	for _, kind := range []string{"reset", "resumed", "resumed_diff", "compared", "diff", "later"} {
		u.Batches[kind] = r.sent(kind)
	}
	return u
}

// collectGarbage gives back what is not in use.
func collectGarbage() {
	runtime.GC()
	runtime.GC() // what the first one finds in pools
	debug.FreeOSMemory()
}

// readProcess is what this process takes.
func readProcess() (u fleetUsage) {
	u.CPU, _ = processTime()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Heap, u.Stacks, u.Goroutines = int64(m.HeapAlloc), int64(m.StackInuse), runtime.NumGoroutine()
	status, _ := os.ReadFile("/proc/self/status")
	if _, rest, ok := bytes.Cut(status, []byte("VmRSS:")); ok {
		kilobytes, _ := strconv.Atoi(string(bytes.Fields(rest)[0]))
		u.RSS = int64(kilobytes) << 10
	}
	return u
}

// fleetServer is the process as the benchmark sees it.
type fleetServer struct {
	address string
	cmd     *exec.Cmd
	in      *json.Encoder
	out     *json.Decoder
}

// startFleetServer starts a server and waits until it serves. It is killed when the benchmark ends, at the latest.
func startFleetServer(b *testing.B, spec fleetSpec, ca authority) *fleetServer {
	b.Helper()
	config := ca.server(b)
	key, err := x509.MarshalPKCS8PrivateKey(config.Certificates[0].PrivateKey)
	require.NoError(b, err)
	spec.Cert, spec.Key, spec.CA = config.Certificates[0].Certificate[0], key, ca.Certificate.Raw
	s := &fleetServer{cmd: exec.Command(os.Args[0])}
	s.cmd.Env = append(os.Environ(), fleetServerEnv+"=1")
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	require.NoError(b, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(b, err)
	s.in, s.out = json.NewEncoder(in), json.NewDecoder(out)
	require.NoError(b, s.cmd.Start())
	b.Cleanup(s.kill)
	require.NoError(b, s.in.Encode(spec))
	var usage fleetUsage
	require.NoError(b, s.out.Decode(&usage))
	s.address = usage.Address
	return s
}

func (s *fleetServer) kill() {
	_ = s.cmd.Process.Kill() // it may be gone already
	_ = s.cmd.Wait()
}

func (s *fleetServer) do(b *testing.B, what string, n int) (usage fleetUsage) {
	b.Helper()
	return s.command(b, fleetCommand{Do: what, N: n})
}

func (s *fleetServer) command(b *testing.B, c fleetCommand) (usage fleetUsage) {
	b.Helper()
	require.NoError(b, s.in.Encode(c))
	require.NoError(b, s.out.Decode(&usage))
	return usage
}

// settled is the usage once every client has what it should have, and the server knows.
func (s *fleetServer) settled(b *testing.B) fleetUsage {
	b.Helper()
	for {
		usage := s.do(b, doUsage, 0)
		if usage.Behind == 0 {
			return usage
		}
		time.Sleep(20 * time.Millisecond)
	}
}
