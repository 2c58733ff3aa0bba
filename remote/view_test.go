package remote

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

var stateN1 = localstate.Options{NodeName: "n1"}

func name(n string) model.ServiceName { return model.ServiceName{Namespace: "default", Name: n} }

// service1 returns a service with one port.
func service1() *remotev1.Service {
	return &remotev1.Service{Ports: []*remotev1.ServicePort{{Name: "http", Protocol: remotev1.Protocol_TCP, Port: 80}}}
}

// takeUpdate applies a batch of one message, as a client does.
func (v *view) takeUpdate(t *testing.T, kind remotev1.Kind, u *remotev1.Update) error {
	var d wire.Decoder
	var batch wire.Batch
	b, err := proto.Marshal(u)
	require.NoError(t, err)
	if _, err := d.Update(b, nil, &batch); err != nil {
		return err
	}
	if err := d.Err(); err != nil {
		return err
	}
	return v.take(t.Context(), kind, batch)
}

// view1 returns a client that has one service with one endpoint.
func view1(t *testing.T) *view {
	v := newView(stateN1)
	require.NoError(t, v.takeUpdate(t, remotev1.Kind_RESET, &remotev1.Update{
		Node: &remotev1.Node{Name: "n1"},
		Services: []*remotev1.ServiceChange{{Namespace: "default", Name: "a", Whole: true,
			Service: service1(),
			Endpoints: []*remotev1.Endpoint{{Port: "http", Protocol: remotev1.Protocol_TCP,
				Address: []byte{10, 0, 0, 1}, TargetPort: 80, Sets: 1}}}},
	}))
	return v
}

func contents(v *view) *sink.Recorder {
	var rec sink.Recorder
	v.handed, v.nodeGiven = &sink.Snapshot{}, nil
	v.flush(&rec)
	return &rec
}

// A newer server may send what this client does not know: unknown fields are ignored, ports with unknown values left
// out.
func TestWhatANewerServerSaysDoesNoHarm(t *testing.T) {
	newer := service1()
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

// A malformed batch is an error that names the defect, and none of it is applied.
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

// The stored state does not depend on the families of the client. After the families change, the client has the same
// state as one that had them from the beginning, at once and after the next change.
func TestTheFamiliesOfAStateCanBeReplaced(t *testing.T) {
	for _, families := range [][]model.Family{{model.IPv4}, {model.IPv6}, {model.IPv4, model.IPv6}} {
		opts := stateN1
		opts.Families = families
		want, got := newView(opts), newView(stateN1)
		full := reset1("10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2")
		full.Services[0].Service.ClusterIPs = [][]byte{{10, 96, 0, 1}, netip.MustParseAddr("fd00:96::1").AsSlice()}
		more := &remotev1.Update{Services: []*remotev1.ServiceChange{{Namespace: "default", Name: "a",
			Removed: full.Services[0].Endpoints[2:3]}}}
		require.NoError(t, want.takeUpdate(t, remotev1.Kind_RESET, full))
		require.NoError(t, got.takeUpdate(t, remotev1.Kind_RESET, full))
		got = got.withOptions(t.Context(), opts)
		assert.Equal(t, want.pending, got.pending)
		assert.Equal(t, want.noLocal.total, got.noLocal.total)
		for _, change := range []*remotev1.Update{{}, more} {
			require.NoError(t, want.takeUpdate(t, remotev1.Kind_DIFF, change))
			require.NoError(t, got.takeUpdate(t, remotev1.Kind_DIFF, change))
			wants, gots := contents(want), contents(got)
			assert.Equal(t, wants.Services(), gots.Services())
			assert.Equal(t, wants.Endpoints(), gots.Endpoints())
			assert.NotEmpty(t, gots.Endpoints())
			assert.True(t, proto.Equal(want.digest(), got.digest()))
		}
	}
}

func TestFamiliesAreNotReplacedWhileAFeedRuns(t *testing.T) {
	feed, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1})
	require.NoError(t, err)
	require.NoError(t, feed.SetFamilies(t.Context(), []model.Family{model.IPv6}), "before there is a state")
	assert.Equal(t, []model.Family{model.IPv6}, feed.Families())
	feed.running.Store(true)
	assert.EqualError(t, feed.SetFamilies(t.Context(), nil), "the feed is already running")
}
