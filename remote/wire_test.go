package remote

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// richService has something in every field.
func richService() *model.Service {
	var rec sink.Recorder
	state, _ := localstate.New(context.Background(), localstate.Options{NodeName: "n1"})
	svc := kube.Service("default/rich").UID("u").Created(time.Unix(1700000000, 0)).
		ClusterIP("10.96.0.1", "fd00::1").Port("http", 80).NodePort(30080).UDPPort("dns", 53).
		Type(corev1.ServiceTypeLoadBalancer).LoadBalancerIP("203.0.113.7").ExternalIP("198.51.100.1").
		SourceRange("192.0.2.0/24").ExternalLocal().InternalLocal().HealthCheckNodePort(31000).Affinity(100).
		Label("a", "b").Annotation("c", "d").Build()
	class := "x"
	svc.Spec.LoadBalancerClass = &class
	_, _ = state.Apply(svc, false)
	state.Flush(&rec)
	return rec.Services()[name("rich")]
}

func TestWhatIsSentIsWhatArrives(t *testing.T) {
	svc := richService()
	var d decoder
	got := d.service(svc.Name, marshal(encodeService(svc)))
	require.NoError(t, d.err())
	assert.True(t, svc.Equal(got), "%v\n%v", svc, got)
	assert.Equal(t, serviceDigest(svc), serviceDigest(got))
	ep := &model.Endpoint{Port: model.PortName{Service: svc.Name, Port: "http", Protocol: model.SCTP},
		Target: netip.MustParseAddrPort("10.0.0.1:80"), Node: "n",
		Sets: model.ClusterSet | model.LocalSet, Local: true, Ready: true, Serving: true, Terminating: true,
		Details: model.NewDetails(model.EndpointDetails{TargetRef: model.TargetRef{Kind: "Pod", Namespace: "a",
			Name: "b", UID: "c"},
			Hostname: "h", Zone: "z", NodeHints: []string{"n"}, ZoneHints: []string{"z", "y"}})}
	assert.Equal(t, []*model.Endpoint{ep}, d.endpoints(svc.Name, [][]byte{marshal(encodeEndpoint(ep))}))
	require.NoError(t, d.err())
}

// takeUpdate applies a batch of one message, as a client does.
func (v *view) takeUpdate(t *testing.T, kind remotev1.Kind, u *remotev1.Update) error {
	var d decoder
	var batch receivedBatch
	b, err := proto.Marshal(u)
	require.NoError(t, err)
	if _, err := d.update(b, nil, &batch); err != nil {
		return err
	}
	if err := d.err(); err != nil {
		return err
	}
	return v.take(t.Context(), kind, batch)
}

// view1 is a client that has one service with one endpoint.
func view1(t *testing.T) *view {
	v := newView(stateN1)
	require.NoError(t, v.takeUpdate(t, remotev1.Kind_RESET, &remotev1.Update{
		Node: &remotev1.Node{Name: "n1"},
		Services: []*remotev1.ServiceChange{{Namespace: "default", Name: "a", Whole: true,
			Service: encodeService(&model.Service{Name: name("a"),
				Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}}}),
			Endpoints: []*remotev1.Endpoint{{Port: "http", Protocol: remotev1.Protocol_TCP,
				Address: []byte{10, 0, 0, 1}, TargetPort: 80, Sets: 1}}}},
	}))
	return v
}

// The order of a repeated field is the sender's; the methods of a part ask for one.
func TestAPartMayComeInAnyOrder(t *testing.T) {
	var d decoder
	part := d.part(marshal(&remotev1.NodePart{Namespace: "default", Name: "a", Unselected: []*remotev1.PortFamily{
		{Port: "z", Protocol: remotev1.Protocol_TCP, Family: 4},
		{Port: "b", Protocol: remotev1.Protocol_TCP, Family: 6},
		{Port: "b", Protocol: remotev1.Protocol_TCP, Family: 4},
	}})).part
	require.NoError(t, d.err())
	for _, port := range []string{"z", "b"} {
		shared := &model.Endpoint{Port: model.PortName{Service: name("a"), Port: port, Protocol: model.TCP},
			Target: netip.MustParseAddrPort("10.0.0.1:80"), Sets: model.ClusterSet}
		assert.Nil(t, part.Endpoint(localstate.Class{}, shared.Key(), shared), port)
	}
}

func contents(v *view) *sink.Recorder {
	var rec sink.Recorder
	v.handed, v.nodeGiven = &sink.Snapshot{}, nil
	v.flush(&rec)
	return &rec
}

// A newer server may say what this client does not know: fields are ignored, ports with unknown values left out.
func TestWhatANewerServerSaysDoesNoHarm(t *testing.T) {
	newer := encodeService(&model.Service{Name: name("a"),
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}}})
	newer.Type = 99
	newer.Ports = append(newer.Ports,
		&remotev1.ServicePort{Name: "quic", Protocol: 99, Port: 443},
		&remotev1.ServicePort{Name: "odd", Protocol: remotev1.Protocol_TCP, Port: 81,
			RoutesIPv4: &remotev1.Routes{ClusterIP: &remotev1.Route{Masquerade: 99}}})
	newer.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 7))
	b, err := proto.Marshal(&remotev1.Update{Services: []*remotev1.ServiceChange{{Namespace: "default", Name: "a",
		Service: newer,
		Endpoints: []*remotev1.Endpoint{
			{Port: "quic", Protocol: 99, Address: []byte{10, 0, 0, 2}, TargetPort: 443, Sets: 1},
			{Port: "odd", Protocol: remotev1.Protocol_TCP, Address: []byte{10, 0, 0, 3}, TargetPort: 81, Sets: 1}}}}})
	require.NoError(t, err)
	var update remotev1.Update
	require.NoError(t, proto.Unmarshal(b, &update))
	check := func(v *view, endpoints int) {
		rec := contents(v)
		svc := rec.Services()[name("a")]
		assert.Equal(t, model.ServiceTypeUnknown, svc.Type)
		assert.Len(t, svc.Ports, 1)
		assert.Len(t, rec.Endpoints(), endpoints)
		assert.Empty(t, rec.Violations())
	}
	v := view1(t)
	require.NoError(t, v.takeUpdate(t, remotev1.Kind_DIFF, &update))
	check(v, 1)

	v = newView(stateN1)
	update.Node, update.Services[0].Whole = &remotev1.Node{Name: "n1"}, true
	require.NoError(t, v.takeUpdate(t, remotev1.Kind_RESET, &update))
	check(v, 0)
}

// A newer client may say what this server does not know.
func TestWhatANewerClientSaysDoesNoHarm(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, ServerOptions{Source: c}, socket(t))
	hello := &remotev1.Hello{Node: "n1", Options: &remotev1.Options{},
		Resume: &remotev1.Resume{Digest: &remotev1.Digest{Version: 99, Shared: []byte("another"), Own: []byte("kind")}}}
	for _, m := range []proto.Message{hello, hello.Options, hello.Resume} {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 7))
	}
	batch := receiveBatch(t, rawStream(t, server.target, hello))
	assert.Equal(t, remotev1.Kind_RESET, batch[0].Kind, "digests of another version are not compared")
	assert.Len(t, batch[0].Services, 1)
}

// A malformed batch is an error that names what is wrong, and none of it is taken.
func TestAMalformedBatchChangesNothing(t *testing.T) {
	change := func(c *remotev1.ServiceChange) *remotev1.Update {
		return &remotev1.Update{Services: []*remotev1.ServiceChange{{Namespace: "default", Name: "a", Deleted: true},
			c}}
	}
	for want, u := range map[string]*remotev1.Update{
		"service default/: name: is empty": change(&remotev1.ServiceChange{Namespace: "default"}),
		"service default/b: clusterIPs: 01 is not an IPv4 or IPv6 address": change(
			&remotev1.ServiceChange{Namespace: "default", Name: "b",
				Service: &remotev1.Service{ClusterIPs: [][]byte{{1}}}}),
		"endpoints.targetPort: 70000 is not a port number": change(&remotev1.ServiceChange{Namespace: "default",
			Name: "b",
			Endpoints: []*remotev1.Endpoint{{Protocol: remotev1.Protocol_TCP, Address: []byte{1, 2, 3, 4},
				TargetPort: 70000}}}),
		"serviceCIDRs: 10.0.0.0 has no prefix of 40 bits": {Services: change(&remotev1.ServiceChange{Namespace: "x",
			Name: "y"}).Services,
			Node: &remotev1.Node{ServiceCIDRs: []*remotev1.Prefix{{Address: []byte{10, 0, 0, 0}, Bits: 40}}}},
	} {
		v := view1(t)
		before := v.digest()
		require.ErrorContains(t, v.takeUpdate(t, remotev1.Kind_DIFF, u), want)
		assert.True(t, proto.Equal(before, v.digest()), want)
		assert.Len(t, contents(v).Services(), 1)
	}
}

// hung is a server that says what it is told to, and then nothing at all, while its connection lives.
type hung struct {
	remotev1.UnimplementedBrainServer
	says []*remotev1.Update
}

func (h *hung) Watch(stream grpc.BidiStreamingServer[remotev1.Request, remotev1.Update]) error {
	for _, u := range h.says {
		if err := stream.Send(u); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func serveHung(t *testing.T, says ...*remotev1.Update) string {
	t.Helper()
	target := socket(t)
	ln, err := Listen(t.Context(), target, 0)
	require.NoError(t, err)
	server := grpc.NewServer()
	remotev1.RegisterBrainServer(server, &hung{says: says})
	done := make(chan struct{})
	go func() {
		_ = server.Serve(ln)
		close(done)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return target
}

// A server that hangs is found out by its silence, though its connection is as healthy as can be.
func TestAClientLeavesAServerThatIsSilent(t *testing.T) {
	says := []*remotev1.Update{
		{Kind: remotev1.Kind_RESET, HeartbeatMillis: 5, Node: &remotev1.Node{Name: "n1"},
			Sync: &remotev1.Sync{Revision: 1}},
		{Kind: remotev1.Kind_HEARTBEAT},
	}
	target := serveHung(t, says...)
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	good := serve(t, ServerOptions{Source: c}, socket(t))
	p := newProxy(t, good.target)
	p.close(true)
	rec, proxy := &sink.Recorder{}, health.New(health.Options{})
	run(t, kubeproxy.Options{Sink: rec, Health: proxy}, Options{Targets: []string{target, p.target}, State: stateN1})
	wave, err := rec.NextWave(t.Context())
	require.NoError(t, err)
	assert.Len(t, wave.Calls, 1, "the node")
	require.Eventually(t, func() bool { return !proxy.DisconnectedSince().IsZero() }, patience, time.Millisecond)
	p.close(false)
	awaitState(t, c, stateN1, rec)
}

// A client whose state is not what the server thinks asks for all of it, and its sink is told what that changes.
func TestAHeartbeatFindsWhatDiffers(t *testing.T) {
	wrong := digestMessage(digest{1, 2}, digest{3, 4})
	reset := &remotev1.Update{Kind: remotev1.Kind_RESET, HeartbeatMillis: 60000, Node: &remotev1.Node{Name: "n1"},
		Sync: &remotev1.Sync{Revision: 1}}
	client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
	require.NoError(t, err)
	d := &dialer{client: client, handler: &nodeHandler{end: func() {}}, answer: patience}
	require.NoError(t, client.view.takeUpdate(t, remotev1.Kind_RESET, reset))
	target := serveHung(t, reset,
		&remotev1.Update{Kind: remotev1.Kind_HEARTBEAT, Sync: &remotev1.Sync{Revision: 1, Digest: wrong}})
	err = d.stream(quiet(t), target)
	require.ErrorContains(t, err, "the state is not what the server has")
	assert.Nil(t, d.hello().Resume, "everything is asked for")
	assert.NotNil(t, d.hello().Resume, "once")
}

// A client that has nothing takes nothing but the whole state: its sink may be a dataplane that has been working for long.
func TestAPartOfAStateIsNotTakenForTheWhole(t *testing.T) {
	for _, kind := range []remotev1.Kind{remotev1.Kind_RESUMED, remotev1.Kind_DIFF} {
		client, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(quiet(t))
		d := &dialer{client: client, handler: &nodeHandler{end: cancel}, answer: patience}
		err = d.stream(ctx, serveHung(t, &remotev1.Update{Kind: kind, HeartbeatMillis: 60000,
			Node: &remotev1.Node{Name: "n1"}, Sync: &remotev1.Sync{Revision: 1}}))
		require.ErrorContains(t, err, "malformed message: "+kind.String()+" of a state that this client does not have")
		assert.False(t, d.synced)
		assert.Nil(t, client.view.node)
		cancel()
	}
}

func TestAMessageInManyPiecesCostsWhatItsLengthIs(t *testing.T) {
	pieces := bytes.Repeat([]byte{0x82, 1, 2, 8, 7}, 20000) // a health check, again and again
	allocs := testing.AllocsPerRun(1, func() {
		var d decoder
		assert.EqualValues(t, 7, d.service(name("a"), pieces).HealthCheck.NodePort)
		assert.NoError(t, d.err())
	})
	assert.Less(t, allocs, 200.0)
}
