package remote

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// testTimeout is how long a test waits for an expected event. It only fails tests that hang.
const testTimeout = 2 * time.Minute

// quiet is a context without logs.
func quiet(t testing.TB) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// socket returns a target in a directory with a short name.
func socket(t testing.TB) string {
	t.Helper()
	return "unix://" + filepath.Join(testkit.SocketDir(t), "brain.sock")
}

func listen(t testing.TB, target string) net.Listener {
	t.Helper()
	ln, err := net.Listen("unix", strings.TrimPrefix(target, "unix://"))
	require.NoError(t, err)
	return ln
}

// hung is a server that sends given messages, and then nothing at all, while its connection lives.
type hung struct {
	remotev1.UnimplementedBrainServer
	says    []*remotev1.Update
	ends    error // ends the stream after the messages; nil: it stays silent
	visited func()
}

func (h *hung) Watch(stream grpc.BidiStreamingServer[remotev1.Request, remotev1.Update]) error {
	if h.visited != nil {
		h.visited()
	}
	for _, u := range h.says {
		if err := stream.Send(u); err != nil {
			return err
		}
	}
	if h.ends == nil {
		<-stream.Context().Done()
	}
	return h.ends
}

// serveHung runs a hung server until the test ends.
func serveHung(t *testing.T, target string, says ...*remotev1.Update) string {
	t.Helper()
	return (&hung{says: says}).serve(t, target)
}

func (h *hung) serve(t *testing.T, target string) string {
	t.Helper()
	h.serveOn(t, listen(t, target))
	return target
}

func (h *hung) serveOn(t *testing.T, ln net.Listener) {
	t.Helper()
	server := grpc.NewServer()
	remotev1.RegisterBrainServer(server, h)
	done := make(chan struct{})
	go func() {
		_ = server.Serve(ln)
		close(done)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
}

// A server that hangs is noticed by its silence, although its connection is healthy.
func TestAClientLeavesAServerThatIsSilent(t *testing.T) {
	reset := &remotev1.Update{Kind: remotev1.Kind_RESET, HeartbeatMillis: 5, Node: &remotev1.Node{Name: "n1"},
		Sync: &remotev1.Sync{Revision: 1}}
	silent := serveHung(t, socket(t), reset, &remotev1.Update{Kind: remotev1.Kind_HEARTBEAT})
	other := socket(t) // without a server yet
	feed, err := NewFeed(Options{Targets: []string{silent, other}, State: stateN1})
	require.NoError(t, err)
	rec, proxy := &sink.Recorder{}, health.New(0)
	ctx, cancel := context.WithCancel(quiet(t))
	ended := make(chan error, 1)
	go func() { ended <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: rec, Health: proxy}) }()
	wave, err := rec.NextWave(t.Context())
	require.NoError(t, err)
	assert.Len(t, wave.Calls, 1, "the node")
	require.Eventually(t, func() bool { return !proxy.DisconnectedSince().IsZero() }, testTimeout, time.Millisecond)
	serveHung(t, other, &remotev1.Update{Kind: remotev1.Kind_RESET, HeartbeatMillis: 60000,
		Node: &remotev1.Node{Name: "n1", Zone: "of the other"}, Sync: &remotev1.Sync{Revision: 1}})
	require.Eventually(t, func() bool { return rec.Node().Zone != "" }, testTimeout, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}

// A client whose state differs from the server's record asks for all of it, and its sink gets the differences.
func TestAHeartbeatFindsWhatDiffers(t *testing.T) {
	wrong := wire.DigestMessage(wire.Digest{}, wire.Digest{}.Add(wire.NodeDigest(&model.Node{Name: "x"})))
	reset := &remotev1.Update{Kind: remotev1.Kind_RESET, HeartbeatMillis: 60000, Node: &remotev1.Node{Name: "n1"},
		Sync: &remotev1.Sync{Revision: 1}}
	client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
	require.NoError(t, err)
	d := &dialer{client: client, handler: &nodeHandler{end: func() {}}, answer: testTimeout}
	require.NoError(t, client.view.takeUpdate(t, remotev1.Kind_RESET, reset))
	target := serveHung(t, socket(t), reset,
		&remotev1.Update{Kind: remotev1.Kind_HEARTBEAT, Sync: &remotev1.Sync{Revision: 1, Digest: wrong}})
	err = d.stream(quiet(t), target)
	require.ErrorContains(t, err, "the state differs from the server's")
	assert.Nil(t, d.hello().Resume, "everything is asked for")
	assert.NotNil(t, d.hello().Resume, "once")
}

// A client without a state accepts only the whole state: its sink may be a dataplane that has been working for a long
// time.
func TestAPartOfAStateIsNotTakenForTheWhole(t *testing.T) {
	for _, kind := range []remotev1.Kind{remotev1.Kind_RESUMED, remotev1.Kind_DIFF} {
		client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(quiet(t))
		d := &dialer{client: client, handler: &nodeHandler{end: cancel}, answer: testTimeout}
		err = d.stream(ctx, serveHung(t, socket(t), &remotev1.Update{Kind: kind, HeartbeatMillis: 60000,
			Node: &remotev1.Node{Name: "n1"}, Sync: &remotev1.Sync{Revision: 1}}))
		require.ErrorContains(t, err, "malformed message: "+kind.String()+" of a state that this client does not have")
		assert.False(t, d.synced)
		assert.Nil(t, client.view.node)
		cancel()
	}
}

// A client that resumes another one's position has no state yet, which a server could confirm.
func TestNothingIsResumedWithoutAState(t *testing.T) {
	client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1, Resume: &Resume{InstanceID: "i"},
		NodeVIPs: func([]netip.Addr, bool) {}})
	require.NoError(t, err)
	d := &dialer{client: client, handler: &nodeHandler{end: func() {}}, answer: testTimeout}
	err = d.stream(quiet(t), serveHung(t, socket(t), &remotev1.Update{Kind: remotev1.Kind_RESUMED,
		HeartbeatMillis: 60000, Sync: &remotev1.Sync{Revision: 1}}))
	require.ErrorContains(t, err, "malformed message: RESUMED of a state that this client does not have")
	assert.False(t, d.synced)
}

// A client leaves a server that accepts connections and sends nothing at all.
func TestAClientLeavesAServerThatDoesNotAnswer(t *testing.T) {
	target := socket(t)
	ln := listen(t, target)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		var conns []net.Conn
		for {
			conn, err := ln.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			conn.Close()
		}
	}()
	defer func() {
		ln.Close()
		<-accepted
	}()
	client, err := NewFeed(Options{Targets: []string{target}, State: stateN1})
	require.NoError(t, err)
	d := &dialer{client: client, handler: &nodeHandler{end: func() {}}, log: klog.FromContext(quiet(t)),
		answer: 10 * time.Millisecond}
	require.ErrorContains(t, d.stream(quiet(t), target), "the server has not answered for 10ms")
}

func TestWrongOptionsAreRefused(t *testing.T) {
	_, err := NewFeed(Options{Targets: []string{"brain.default.svc:1", "unix://x", "10.0.0.1"}})
	for _, want := range []string{`target "brain.default.svc:1" is not ADDRESS:PORT; names need dns:///`,
		"has to be absolute", "missing port",
		"neither TLS nor Insecure is set"} {
		assert.ErrorContains(t, err, want)
	}
	_, err = NewFeed(Options{})
	assert.ErrorContains(t, err, "no targets")
}

// A server may send any digest before the first batch: there is nothing to compare yet.
func TestAHeartbeatMayComeFirst(t *testing.T) {
	client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(quiet(t))
	d := &dialer{client: client, handler: &nodeHandler{end: cancel}, log: klog.FromContext(ctx), answer: testTimeout}
	beat := &remotev1.Update{Kind: remotev1.Kind_HEARTBEAT, HeartbeatMillis: 60000,
		Sync: &remotev1.Sync{Digest: wire.DigestMessage(wire.Digest{}, wire.Digest{})}}
	reset := &remotev1.Update{Kind: remotev1.Kind_RESET, Node: &remotev1.Node{Name: "n1"},
		Sync: &remotev1.Sync{Revision: 1}}
	require.ErrorIs(t, d.stream(ctx, serveHung(t, socket(t), beat, reset)), context.Canceled)
	assert.Equal(t, "n1", client.view.node.Name)
}

// If the digests exceed a server's limit, because it knows few of the services, the client asks for everything.
func TestAfterDigestsThatAreTooManyAClientAsksForEverything(t *testing.T) {
	client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
	require.NoError(t, err)
	client.view = view1(t)
	d := &dialer{client: client, handler: &nodeHandler{end: func() {}}, answer: testTimeout}
	require.NotNil(t, d.hello().Resume)
	server := &hung{says: []*remotev1.Update{{Kind: remotev1.Kind_COMPARE, Compare: &remotev1.Compare{}}},
		ends: status.Error(codes.InvalidArgument, "too large")}
	require.ErrorContains(t, d.stream(quiet(t), server.serve(t, socket(t))), "too large")
	assert.Nil(t, d.hello().Resume)
}

// Unknown messages of a newer server do no harm: no full state at each heartbeat, no lost connection, and no full state
// on reconnecting to the same server.
func TestANewerServerIsNoTrouble(t *testing.T) {
	wrong := wire.DigestMessage(wire.Digest{}, wire.Digest{}.Add(wire.NodeDigest(&model.Node{Name: "x"})))
	beat := &remotev1.Update{Kind: remotev1.Kind_HEARTBEAT, Sync: &remotev1.Sync{Revision: 1, Digest: wrong}}
	newer := &remotev1.Service{Type: 99}
	port := &remotev1.Service{Ports: []*remotev1.ServicePort{{Name: "quic", Protocol: 99, Port: 443}}}
	route := &remotev1.Service{Ports: []*remotev1.ServicePort{{Name: "http", Protocol: remotev1.Protocol_TCP, Port: 80,
		RoutesIPv4: &remotev1.Routes{ClusterIP: &remotev1.Route{Masquerade: 99}}}}}
	ep := func(protocol remotev1.Protocol, sets, conditions uint32) *remotev1.ServiceChange {
		return &remotev1.ServiceChange{Endpoints: []*remotev1.Endpoint{{Port: "http", Protocol: protocol,
			Address: []byte{10, 0, 0, 1}, TargetPort: 80, Sets: sets, Conditions: conditions}}}
	}
	for name, c := range map[string]struct {
		change *remotev1.ServiceChange
		own    []*remotev1.NodePart
	}{
		"a type of services":      {change: &remotev1.ServiceChange{Service: newer}},
		"a policy":                {change: &remotev1.ServiceChange{Service: &remotev1.Service{InternalTrafficPolicy: 9}}},
		"a protocol":              {change: &remotev1.ServiceChange{Service: port}},
		"a route":                 {change: &remotev1.ServiceChange{Service: route}},
		"an endpoint's protocol":  {change: ep(9, 0, 0)},
		"an endpoint's set":       {change: ep(remotev1.Protocol_TCP, 5, 0)},
		"an endpoint's condition": {change: ep(remotev1.Protocol_TCP, 0, 9)},
		"a protocol of a node's part": {own: []*remotev1.NodePart{{Namespace: "ns", Name: "a",
			Unselected: []*remotev1.PortFamily{{Protocol: 99}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			reset := &remotev1.Update{Kind: remotev1.Kind_RESET, InstanceID: "i", HeartbeatMillis: 60000,
				Node: &remotev1.Node{Name: "n1"}, Own: c.own, Sync: &remotev1.Sync{Revision: 1}}
			if c.change != nil {
				c.change.Namespace, c.change.Name, c.change.Whole = "ns", "a", true
				reset.Services = []*remotev1.ServiceChange{c.change}
			}
			d := newDialer(t)
			server := &hung{says: []*remotev1.Update{{Kind: 99}, reset, {Kind: 99}, beat, beat},
				ends: status.Error(codes.Unavailable, "that is all")}
			require.ErrorContains(t, d.stream(quiet(t), server.serve(t, socket(t))), "that is all")
			resume := d.hello().Resume
			assert.Equal(t, "i", resume.GetInstanceID())
			assert.EqualValues(t, 1, resume.GetRevision())
			assert.Nil(t, resume.GetDigest())
			// A state that was sent whole, and contains nothing unknown, can be compared again.
			known := &remotev1.Update{Kind: remotev1.Kind_RESET, Node: reset.Node, Sync: reset.Sync}
			server = &hung{says: []*remotev1.Update{known}, ends: server.ends}
			require.ErrorContains(t, d.stream(quiet(t), server.serve(t, socket(t))), "that is all")
			assert.NotNil(t, d.hello().Resume.GetDigest())
		})
	}
}

// newDialer returns the dialer of a client without a state.
func newDialer(t *testing.T) *dialer {
	client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
	require.NoError(t, err)
	return &dialer{client: client, handler: &nodeHandler{end: func() {}}, log: klog.FromContext(quiet(t)),
		answer: testTimeout}
}

// An Update of an unknown kind that would change the state must not be ignored.
func TestABatchOfAnUnknownKindIsRefused(t *testing.T) {
	for _, u := range []*remotev1.Update{{Kind: 99, Sync: &remotev1.Sync{Revision: 1}}, {Kind: 99, OwnReset: true},
		{Kind: 99, Services: []*remotev1.ServiceChange{{Namespace: "ns", Name: "a"}}}} {
		require.ErrorContains(t, newDialer(t).stream(quiet(t), serveHung(t, socket(t), u)), "a batch of an unknown kind")
	}
}

// If the whole state does not help, digests are no longer compared: asking for it again and again would only cost.
func TestTheWholeStateIsAskedForOnce(t *testing.T) {
	wrong := wire.DigestMessage(wire.Digest{}, wire.Digest{}.Add(wire.NodeDigest(&model.Node{Name: "x"})))
	says := []*remotev1.Update{
		{Kind: remotev1.Kind_RESET, HeartbeatMillis: 60000, Node: &remotev1.Node{Name: "n1"},
			Sync: &remotev1.Sync{Revision: 1}},
		{Kind: remotev1.Kind_HEARTBEAT, Sync: &remotev1.Sync{Revision: 1, Digest: wrong}}}
	d := newDialer(t)
	require.ErrorContains(t, d.stream(quiet(t), serveHung(t, socket(t), says...)), "requesting all of it")
	require.Nil(t, d.hello().Resume)
	again := &hung{says: says, ends: status.Error(codes.Unavailable, "that is all")}
	require.ErrorContains(t, d.stream(quiet(t), again.serve(t, socket(t))), "that is all")
	assert.Nil(t, d.hello().Resume.GetDigest())
}

// A client whose stream a server ends because of its age goes to any server, so that all serve equal numbers of
// clients.
func TestAClientSpreadsWhenItsStreamIsOld(t *testing.T) {
	reset := &remotev1.Update{Kind: remotev1.Kind_RESET, HeartbeatMillis: 60000, Node: &remotev1.Node{Name: "n1"},
		Sync: &remotev1.Sync{Revision: 1}}
	visits := make(chan int)
	var targets []string
	for i := range 2 {
		server := &hung{says: []*remotev1.Update{reset}, ends: status.Error(codes.Aborted, "old"),
			visited: func() { visits <- i }}
		targets = append(targets, server.serve(t, socket(t)))
	}
	feed, err := NewFeed(Options{Targets: targets, State: stateN1})
	require.NoError(t, err)
	feed.maxBackoff = time.Millisecond
	ctx, cancel := context.WithCancel(quiet(t))
	ended := make(chan error, 1)
	go func() { ended <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: &sink.Recorder{}}) }()
	same := 0
	last := <-visits
	for range 40 {
		now := <-visits
		if now == last {
			same++
		}
		last = now
	}
	cancel()
	go func() {
		for range visits {
			continue
		}
	}()
	require.NoError(t, <-ended)
	close(visits)
	assert.Positive(t, same, "it would otherwise only ever change places with others")
	assert.Less(t, same, 40)
}

// A client learns how new its state is from complete batches. It does not know it of a state from an old server, which
// does not send it.
func TestHowNewAStateIsComesWithTheWholeOfIt(t *testing.T) {
	node := &remotev1.Node{Name: "n1"}
	reset := &remotev1.Update{Kind: remotev1.Kind_RESET, HeartbeatMillis: 60000, Node: node,
		Sync: &remotev1.Sync{Revision: 1, Seen: &remotev1.Seen{Services: 5, EndpointSlices: 7}}}
	later := &remotev1.Update{Kind: remotev1.Kind_DIFF,
		Sync: &remotev1.Sync{Revision: 2, Seen: &remotev1.Seen{EndpointSlices: 9}}}
	half := &remotev1.Update{Kind: remotev1.Kind_DIFF,
		Services: []*remotev1.ServiceChange{{Namespace: "ns", Name: "a"}}}
	d := newDialer(t)
	stream := func(says ...*remotev1.Update) {
		server := &hung{says: says, ends: status.Error(codes.Unavailable, "that is all")}
		require.ErrorContains(t, d.stream(quiet(t), server.serve(t, socket(t))), "that is all")
	}
	seen := func() wire.Mark { return wire.MarkOf(d.hello().Seen) }
	stream(reset, half)
	assert.Equal(t, wire.Mark{5, 7}, seen())
	stream(reset, later)
	assert.Equal(t, wire.Mark{5, 9}, seen())
	stream(&remotev1.Update{Kind: remotev1.Kind_RESUMED, Sync: &remotev1.Sync{Revision: 2,
		Seen: &remotev1.Seen{Services: 6, EndpointSlices: 8}}})
	assert.Equal(t, wire.Mark{6, 9}, seen(), "the same state is as new as the newer of the two")
	stream(&remotev1.Update{Kind: remotev1.Kind_RESET, Node: node, Sync: &remotev1.Sync{Revision: 3}})
	assert.Nil(t, d.hello().Seen)
	stream(reset)
	d.client.opts.FreshnessWait = -1
	assert.Nil(t, d.hello().Seen, "it does not wait")
}

// A server that is reachable, but has no state yet, is not logged as unreachable.
func TestAServerThatIsListingIsSaidToBeThere(t *testing.T) {
	for ends, want := range map[error]string{
		status.Error(codes.Unavailable, wire.NotListed):       "The server is reachable, but has not listed the cluster yet",
		status.Error(codes.Unavailable, "connection refused"): "Not connected to a server",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		d := newDialer(t)
		d.client.opts.Targets = []string{(&hung{ends: ends}).serve(t, socket(t))}
		var logged string
		d.log = funcr.New(func(_, args string) {
			logged = args
			cancel()
		}, funcr.Options{})
		d.run(ctx)
		assert.Contains(t, logged, want)
		cancel()
	}
}

// Once a server was older than a node's state, the node waits for a newer one. If it then finds none at all, or one
// that is overloaded, it must not knock four times a second until it does: all nodes of the cluster would.
func TestAFreshnessWaitThatIsOverDoesNotMakeAClientHurry(t *testing.T) {
	d := newDialer(t)
	d.client.opts.FreshnessWait = 30 * time.Second
	d.older = time.Now().Add(-time.Hour)
	wait, next := d.nextPause(4 * time.Second)
	assert.GreaterOrEqual(t, wait, 2*time.Second)
	assert.Equal(t, 8*time.Second, next)

	d.later = 5 * time.Second
	wait, next = d.nextPause(time.Second)
	assert.Equal(t, []time.Duration{5 * time.Second, time.Second}, []time.Duration{wait, next})

	d.later, d.older = 0, time.Now().Add(-10*time.Second)
	wait, next = d.nextPause(time.Hour)
	assert.LessOrEqual(t, wait, 20*time.Second+firstPause, "when the wait is over, any server will do")
	assert.Equal(t, firstPause, next)
}
