package brain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// A client that does not acknowledge is sent nothing more, but is not disconnected. Once it acknowledges, it gets the
// sum of all changes in one batch. Other clients are not affected.
func TestASlowClientCostsNothingButItsOwnLateness(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	slow := rawStream(t, server.target, &remotev1.Hello{Node: "n1"})
	first := receiveBatch(t, slow)
	rec, state := &sink.Recorder{}, localstate.Options{NodeName: "n3"}
	follow(t, rec, remote.Options{Targets: []string{server.target}, State: state})
	for i := range 50 {
		c.set(web("a", fmt.Sprintf("10.0.1.%d", i+1))...)
		awaitState(t, c, state, rec)
	}
	for _, o := range web("gone") {
		c.set(o)
		c.delete(o)
	}
	server.awaitClients(t, func(all []ClientStatus) bool {
		return len(all) == 2 && all[0].Node == "n1" && !all[0].BehindSince.IsZero()
	})
	sendAck(t, slow, first[len(first)-1].Sync.Revision)
	sum := receiveBatch(t, slow)
	require.Len(t, sum, 1)
	require.Len(t, sum[0].Services, 1)
	assert.Len(t, sum[0].Services[0].Endpoints, 1)
	assert.Equal(t, []byte{10, 0, 1, 50}, sum[0].Services[0].Endpoints[0].Address)
	assert.Len(t, sum[0].Services[0].Removed, 1)
}

// A change that concerns one zone, or one node, is sent there and nowhere else.
func TestWhomItDoesNotConcernIsSentNothing(t *testing.T) {
	slice := func(inA ...string) *kube.EndpointSliceBuilder {
		b := kube.EndpointSlice("default/a").Port("http", 8080).Endpoint("10.0.0.9").ForZones("b").OnNode("n2")
		for _, a := range inA {
			b.Endpoint(a).ForZones("a")
		}
		return b
	}
	c := newCluster(append(baseObjects(), kube.Service("default/a").Port("http", 80).Build(),
		slice("10.0.0.1").Build())...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	sinks := map[string]*sink.Recorder{}
	for _, node := range nodeNames {
		sinks[node] = &sink.Recorder{}
		follow(t, sinks[node], remote.Options{Targets: []string{server.target}, State: localstate.Options{NodeName: node}})
		awaitState(t, c, localstate.Options{NodeName: node}, sinks[node])
	}
	settled := func(all []ClientStatus) bool {
		for _, x := range all {
			if x.Revision == 0 || !x.BehindSince.IsZero() {
				return false
			}
		}
		return len(all) == 3
	}
	server.awaitClients(t, settled)
	await := func(nodes ...string) {
		for _, node := range nodes {
			awaitState(t, c, localstate.Options{NodeName: node}, sinks[node])
		}
		server.awaitClients(t, settled)
	}
	c.set(slice("10.0.0.1", "10.0.0.2").Build())
	await("n1", "n3")
	assert.Equal(t, 2, server.sent("diff"), "the nodes of zone a")
	c.set(slice("10.0.0.1", "10.0.0.2").Endpoint("10.0.0.3").ForZones("b").OnNode("n1").Build())
	await("n1", "n2")
	assert.Equal(t, 3, server.sent("diff"), "zone b alone: the node where it is, in zone a, has no use for it")
	local := kube.Service("default/a").Port("http", 80).InternalLocal().Build()
	c.set(local)
	await(nodeNames...)
	sent := server.sent("diff")
	c.set(slice("10.0.0.1", "10.0.0.2").
		Endpoint("10.0.0.3").ForZones("b").OnNode("n1").
		Endpoint("10.0.0.4").ForZones("b").OnNode("n1").Build())
	await("n1")
	sent++
	assert.Equal(t, sent, server.sent("diff"), "with a Local policy it is for its node alone")
	c.set(kube.Node("n1").Zone("a").InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").
		Label("kubernetes.io/os", "linux").Build())
	c.set(kube.Node("n1").Zone("b").InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").Build())
	await("n1")
	assert.Equal(t, sent+1, server.sent("diff"),
		"a node that moves to another zone is sent the difference; of its labels nobody hears")
	assert.Equal(t, 3, server.sent("reset"))
}

func TestTheServerKnowsWhatItsClientsCouldNotApply(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	registry := prometheus.NewPedanticRegistry()
	server := serve(t, Options{Source: c, Metrics: registry, limits: limits{minInterval: -1}}, socket(t))
	rec := &sink.Recorder{}
	rec.FailNext(errors.New("the kernel is full"))
	proxy := health.New(0)
	stop := run(t, kubeproxy.Options{Sink: rec, RetryInterval: time.Hour, Health: proxy},
		remote.Options{Targets: []string{server.target}, State: stateN1})
	server.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 1 && all[0].Error != "" })
	clients := server.Clients()
	assert.Equal(t, "the kernel is full", clients[0].Error)
	assert.Equal(t, "n1", clients[0].Node)
	assert.Equal(t, "a", clients[0].Zone)
	w := httptest.NewRecorder()
	server.StatusHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?worst=1", nil))
	var answer struct {
		Clients, Errors int
		Worst           []ClientStatus
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	assert.Equal(t, 1, answer.Errors)
	assert.Equal(t, "n1", answer.Worst[0].Node)
	server.awaitClients(t, current) // the retry, which the runner makes 100 ms later
	server.awaitClients(t, func(all []ClientStatus) bool { return all[0].Error == "" })
	_, err := registry.Gather()
	require.NoError(t, err)
	assert.Zero(t, proxy.DisconnectedSince())
	stop()
	server.stop()
}

func TestTheStatusOfANodeCanBeAskedFor(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...)}, socket(t))
	for _, node := range []string{"n1", "n2", "n2"} {
		server.idle(t, node)
	}
	for node, want := range map[string]int{"n1": 1, "n2": 2, "n3": 0} {
		w := httptest.NewRecorder()
		server.StatusHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?worst=0&node="+node, nil))
		var answer struct {
			Clients int
			Worst   []ClientStatus
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		assert.Equal(t, 3, answer.Clients)
		require.Len(t, answer.Worst, want, node)
		for _, c := range answer.Worst {
			assert.Equal(t, node, c.Node)
		}
	}
}

// A malformed message ends its stream with an error that names the reason, and affects no other stream.
func TestAMalformedMessageEndsItsStreamAlone(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	awaitState(t, c, stateN1, rec)
	hello := &remotev1.Hello{Node: "n2"}
	for name, tc := range map[string]struct {
		first  *remotev1.Hello
		second *remotev1.Request
		want   string
	}{
		"no hello": {nil, &remotev1.Request{Ack: &remotev1.Ack{}}, "the first message has to be a Hello"},
		"an address": {&remotev1.Hello{Node: "n2", Options: &remotev1.Options{NodeIPs: [][]byte{{1, 2}}}}, nil,
			"nodeIPs: 0102 is not an IPv4 or IPv6 address"},
		"two ways": {&remotev1.Hello{Node: "n2",
			Options: &remotev1.Options{DetectLocal: &remotev1.DetectLocal{Bridge: "b", InterfacePrefix: "v"}}}, nil,
			"more than one way"},
		"no name": {&remotev1.Hello{}, nil, "the name of the node is not known"},
		"a wrong revision": {hello, &remotev1.Request{Ack: &remotev1.Ack{Revision: 77}},
			"the acknowledged revision 77 is not the last one sent"},
		"two hellos": {hello, &remotev1.Request{Hello: hello}, "a second Hello"},
		"nothing":    {hello, &remotev1.Request{}, "an empty message"},
		"digests": {hello, &remotev1.Request{Digests: &remotev1.Digests{Buckets: []byte{1}}},
			"unrequested digests"},
		"too long": {hello, &remotev1.Request{Digests: &remotev1.Digests{Buckets: make([]byte, 16<<20)}},
			"received message larger than max"},
	} {
		t.Run(name, func(t *testing.T) {
			stream := rawStream(t, server.target, tc.first)
			if tc.second != nil {
				require.NoError(t, stream.Send(tc.second))
			}
			for {
				if _, err := stream.Recv(); err != nil {
					assert.Contains(t, []codes.Code{codes.InvalidArgument, codes.PermissionDenied, codes.ResourceExhausted},
						status.Code(err))
					assert.ErrorContains(t, err, tc.want)
					return
				}
			}
		})
	}
	rec.TakeWaves()
	c.set(web("a", "10.0.0.2")...)
	awaitState(t, c, stateN1, rec)
	assert.Equal(t, 0, server.sent("resumed"), "the good client was never cut off")
}

// open is a server with a listener, neither of which runs yet.
type open struct {
	*Server
	ln     net.Listener
	target string
}

func openServer(t *testing.T) open {
	server, err := New(quiet(t), Options{Source: newCluster(baseObjects()...)})
	require.NoError(t, err)
	target := socket(t)
	ln, err := Listen(t.Context(), target, 0)
	require.NoError(t, err)
	return open{server, ln, target}
}

// background runs f until end is called, and then sends what it returns.
func background(t *testing.T, f func(context.Context) error) (end func(), ended <-chan error) {
	ctx, end := context.WithCancel(quiet(t))
	result := make(chan error, 1)
	go func() { result <- f(ctx) }()
	return end, result
}

// A stream that waits for its client ends with the server, and the client gets the reason.
func TestClientsAreToldThatTheServerEnds(t *testing.T) {
	b := openServer(t)
	end, ended := background(t, b.Run)
	stop, served := background(t, func(ctx context.Context) error { return b.Serve(ctx, b.ln, ServeOptions{}) })
	require.Eventually(t, b.ready, testTimeout, time.Millisecond)
	stream := rawStream(t, b.target, &remotev1.Hello{Node: "n1"})
	receiveBatch(t, stream)
	end()
	require.NoError(t, <-ended)
	_, err := stream.Recv()
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.ErrorContains(t, err, "the server ends")
	require.Eventually(t, func() bool { return len(b.Clients()) == 0 }, testTimeout, time.Millisecond)
	stop()
	require.NoError(t, <-served)
}

// When Serve returns, no stream is left, even if it returns because the listener failed.
func TestServeLeavesNoStreamsBehind(t *testing.T) {
	b := openServer(t)
	end, ended := background(t, b.Run)
	_, served := background(t, func(ctx context.Context) error { return b.Serve(ctx, b.ln, ServeOptions{}) })
	require.Eventually(t, b.ready, testTimeout, time.Millisecond)
	receiveBatch(t, rawStream(t, b.target, &remotev1.Hello{Node: "n1"}))
	require.Len(t, b.Clients(), 1)
	b.ln.Close()
	require.ErrorContains(t, <-served, "serving")
	assert.Empty(t, b.Clients())
	end()
	require.NoError(t, <-ended)
}

// A replica that has not listed everything serves no client, so that no client gets a partial state, and clients find
// the replica that has.
func TestAReplicaThatHasNotListedEverythingServesNobody(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	half := newCluster(baseObjects()...)
	half.unsynced = true
	a := serve(t, Options{Source: half}, socket(t))
	_, err := rawStream(t, a.target, &remotev1.Hello{Node: "n1"}).Recv()
	assert.Equal(t, codes.Unavailable, status.Code(err), err)
	assert.EqualError(t, a.Ready(), "not everything has been listed yet")
	b := serve(t, Options{Source: c}, socket(t))
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{a.target, b.target}, State: stateN1})
	awaitState(t, c, stateN1, rec)
	b.awaitClients(t, current)
	assert.Equal(t, 1, b.sent("reset"))
}

// Admission does not starve: with room for one full state at a time, every client gets in, and those that resume do not
// wait.
func TestAStormIsServedOneAfterTheOther(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{maxFullStates: 1, maxWait: time.Millisecond}}, socket(t))
	p, _ := followThroughProxy(t, c, server)
	server.awaitClients(t, current)
	server.slots <- struct{}{} // somebody takes his time
	p.Cut()
	require.Eventually(t, func() bool { return server.sent("resumed") == 1 }, testTimeout, time.Millisecond)
	u, err := rawStream(t, server.target, &remotev1.Hello{Node: "n2"}).Recv()
	require.NoError(t, err)
	assert.Equal(t, remotev1.Kind_LATER, u.Kind)
	assert.Positive(t, u.RetryAfterMillis)
	<-server.slots
	var sinks []*sink.Recorder
	node := func(i int) localstate.Options { return localstate.Options{NodeName: fmt.Sprintf("m%d", i)} }
	for i := range 30 {
		rec := &sink.Recorder{}
		sinks = append(sinks, rec)
		follow(t, rec, remote.Options{Targets: []string{server.target}, State: node(i)})
	}
	for i, rec := range sinks {
		awaitState(t, c, node(i), rec)
	}
}

func TestTooManyAreTurnedAway(t *testing.T) {
	c := newCluster(baseObjects()...)
	server := serve(t, Options{Source: c, limits: limits{maxClients: 1, maxClasses: 1}}, socket(t))
	one := rawStream(t, server.target, &remotev1.Hello{Node: "n1"})
	receiveBatch(t, one)
	_, err := rawStream(t, server.target, &remotev1.Hello{Node: "n1"}).Recv()
	assert.ErrorContains(t, err, "there are already 1 clients")
	server = serve(t, Options{Source: c, limits: limits{maxClasses: 1}}, socket(t))
	for i := range 1 + classesWithoutZone {
		receiveBatch(t, rawStream(t, server.target, withOptions(fmt.Sprint("other-", i), i)))
	}
	_, err = rawStream(t, server.target, withOptions("last", 1+classesWithoutZone)).Recv()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.ErrorContains(t, err, "there are already as many classes of nodes as there may be")
}

// Syncer.Sync waits for changes that a brain sends as it waits for those of the program's own source.
func TestACallWaitsForWhatABrainSends(t *testing.T) {
	server := serve(t, Options{Source: newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)}, socket(t))
	rec, syncer := &sink.Recorder{}, &kubeproxy.Syncer{}
	stop := run(t, kubeproxy.Options{Sink: rec, Syncer: syncer},
		remote.Options{Targets: []string{server.target}, State: localstate.Options{NodeName: "n1"}})
	require.NoError(t, syncer.Sync(t.Context()))
	assert.Len(t, rec.Services(), 1)
	assert.Len(t, rec.Endpoints(), 1)
	stop()
	require.Equal(t, kubeproxy.ErrRunEnded, syncer.Sync(t.Context()))
}

// nodeless is a source without Nodes.
type nodeless struct{ *cluster }

func (nodeless) DeliversNodes() bool { return false }

// If the source delivers no Nodes, a client does not wait for podCIDRs in vain. All other clients need nothing but
// their own options.
func TestANodeWhosePodCIDRsNobodyDeliversIsTurnedAway(t *testing.T) {
	server := serve(t, Options{Source: nodeless{newCluster(web("a", "10.0.0.1")...)}}, socket(t))
	_, err := rawStream(t, server.target,
		&remotev1.Hello{Node: "n1", Options: &remotev1.Options{DetectLocal: &remotev1.DetectLocal{NodeCIDR: true}}}).Recv()
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.ErrorContains(t, err, "NodeCIDR needs the Node, and the server's source delivers no Nodes")
	receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "n1"}))
}

// A node that detects local traffic by its podCIDRs is sent no state before it has some, but gets heartbeats.
func TestANodeWaitsForItsPodCIDRs(t *testing.T) {
	t.Parallel() // it waits for the first heartbeat
	c := newCluster(append(web("a", "10.0.0.1"), kube.Node("n1").Zone("a").Build())...)
	server := serve(t,
		Options{Source: c, limits: limits{minInterval: -1, heartbeat: time.Hour}}, socket(t))
	stream := rawStream(t, server.target,
		&remotev1.Hello{Node: "n1", Options: &remotev1.Options{DetectLocal: &remotev1.DetectLocal{NodeCIDR: true}}})
	u, err := stream.Recv()
	require.NoError(t, err)
	assert.Equal(t, remotev1.Kind_HEARTBEAT, u.Kind)
	c.set(kube.Node("n1").Zone("a").PodCIDR("10.244.1.0/24").Build())
	batch := receiveBatch(t, stream)
	assert.Equal(t, remotev1.Kind_RESET, batch[0].Kind)
}

// TestFaults: connections are cut, replicas killed and started anew, clusters are not equally far, sinks fail; at the
// end every sink has what one has that is fed directly, and never saw anything that Sink does not promise.
func TestFaults(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel() // they wait most of the time
			d := testkit.Seeded(seed)
			c := newCluster(baseObjects()...)
			opts := Options{Source: c, KeepBytes: 1 + d.IntN(5000), limits: limits{
				minInterval: time.Duration(d.IntN(3)-1) * time.Millisecond, heartbeat: 100 * time.Millisecond,
				maxFullStates: 1 + d.IntN(2), keep: time.Duration(1+d.IntN(200)) * time.Millisecond,
				maxDigests: 1 + d.IntN(200), maxAge: time.Duration(200+d.IntN(2000)) * time.Millisecond}}
			targets := []string{socket(t), socket(t)}
			servers := []*replica{serve(t, opts, targets[0]), serve(t, opts, targets[1])}
			proxies := []proxy{newProxy(t, targets[0]), newProxy(t, targets[1])}
			var sinks []*sink.Recorder
			for _, node := range nodeNames {
				rec := &sink.Recorder{}
				sinks = append(sinks, rec)
				run(t, kubeproxy.Options{Sink: rec, RetryInterval: 10 * time.Millisecond},
					remote.Options{Targets: []string{proxies[0].target, proxies[1].target},
						State: localstate.Options{NodeName: node}})
			}
			for range 60 {
				c.change(randomChange(d))
				switch d.IntN(8) {
				case 0:
					proxies[d.IntN(2)].Cut()
				case 1:
					p := proxies[d.IntN(2)]
					testkit.Pick(d, p.Block, p.Unblock)()
				case 2:
					i := d.IntN(2)
					servers[i].stop()
					servers[i] = serve(t, opts, targets[i])
				case 3:
					sinks[d.IntN(len(sinks))].FailNext(errors.New("out of order"))
				case 4:
					i := d.IntN(len(nodeNames)) // let somebody get somewhere
					proxies[0].Unblock()
					proxies[1].Unblock()
					awaitState(t, c, localstate.Options{NodeName: nodeNames[i]}, sinks[i])
				}
			}
			proxies[0].Unblock()
			proxies[1].Unblock()
			for i, node := range nodeNames {
				awaitState(t, c, localstate.Options{NodeName: node}, sinks[i])
			}
			for _, rec := range sinks {
				assert.Empty(t, rec.Violations())
			}
		})
	}
}

// slowSink is a sink whose Sync takes as long as the test says.
type slowSink struct {
	sink.Recorder
	proceed chan struct{} // Sync begins, and ends, with a value from it
}

func (s *slowSink) Sync(ctx context.Context) error {
	for range 2 {
		select {
		case <-s.proceed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Recorder.Sync(ctx)
}

// A Sync that hangs does not count as a success, not even if the client resumes meanwhile.
func TestWhatASyncHangsWithIsNotApplied(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	p := newProxy(t, server.target)
	slow, proxy := &slowSink{proceed: make(chan struct{})}, health.New(0)
	run(t, kubeproxy.Options{Sink: slow, Health: proxy}, remote.Options{Targets: []string{p.target}, State: stateN1})
	slow.proceed <- struct{}{} // it hangs
	p.Cut()
	require.Eventually(t, func() bool { return server.sent("resumed") == 1 && proxy.DisconnectedSince().IsZero() },
		testTimeout, time.Millisecond)
	assert.Never(t, func() bool { return current(server.Clients()) }, 30*time.Millisecond, time.Millisecond)
	slow.proceed <- struct{}{}
	server.awaitClients(t, current)
}

// A client that has never acknowledged anything is behind: one that resumes, and one that is sent nothing.
func TestAClientThatHasAcknowledgedNothingIsBehind(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...), limits: limits{heartbeat: time.Millisecond}},
		socket(t))
	view := server.idle(t, "n1").has
	behind := func() int {
		n := 0
		for _, c := range server.Clients() {
			if !c.BehindSince.IsZero() {
				n++
			}
		}
		return n
	}
	require.Zero(t, behind())
	u, err := rawStream(t, server.target, &remotev1.Hello{Node: "n1",
		Resume: &remotev1.Resume{Digest: view.digest()}}).Recv()
	require.NoError(t, err)
	require.Equal(t, remotev1.Kind_RESUMED, u.Kind)
	assert.Equal(t, 1, behind())
	u, err = rawStream(t, server.target, &remotev1.Hello{Node: "n9", Options: &remotev1.Options{
		DetectLocal: &remotev1.DetectLocal{NodeCIDR: true}}}).Recv()
	require.NoError(t, err)
	require.Equal(t, remotev1.Kind_HEARTBEAT, u.Kind)
	assert.Equal(t, 2, behind())
}

// A change that arrives between the end of a stream and that of its client is not sent: the client has no state to
// which it could be applied.
func TestAClientThatWasToldToComeLaterIsSentNothingMore(t *testing.T) {
	server, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h := serverHandler{server}
	h.Update(watch.Change{Object: baseObjects()[0]})
	h.Synced()
	stream := &countedStream{}
	c := &client{server: &server.common, node: "n1", stream: stream, ctx: t.Context(), news: true}
	require.NoError(t, server.join(c, localstate.Options{}))
	defer server.leave(c)
	for range maxSlotUsers {
		require.True(t, server.slotUsers.add(c.principal(), maxSlotUsers))
	}
	require.True(t, c.begin())
	c.send()
	require.Equal(t, 1, stream.sent)
	c.announce(time.Now())
	c.deliver()
	assert.Equal(t, 1, stream.sent)
}

// countedStream counts the messages of a server.
type countedStream struct {
	stream
	sent int
}

func (s *countedStream) SendMsg(any) error {
	s.sent++
	return nil
}
