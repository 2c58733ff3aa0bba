package wire

import (
	"bytes"
	"context"
	"maps"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func marshal(m proto.Message) []byte { return Encode(m).Bytes() }

func name(n string) model.ServiceName { return model.ServiceName{Namespace: "default", Name: n} }

// richService has something in every field.
func richService() *model.Service {
	var rec sink.Recorder
	state, _ := localstate.New(context.Background(), localstate.Options{NodeName: "n1"},
		localstate.ClusterOptions{})
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

// Every option of a node is sent: a brain would ignore one that is not sent without an error. The name of the node is a
// field of its own, and a client leaves out families that it does not have.
func TestTheOptionsOfANodeAreSentWhole(t *testing.T) {
	sent := localstate.Options{
		NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Zone: "a", MasqueradeAll: true,
		DrainingEndpoints: true, AllEndpoints: true, ExtraSets: model.LocalSet, NoNodeHints: true, NoZoneHints: true,
		DetectLocal: localstate.DetectLocal{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
			NodeCIDR: true, Bridge: "cbr0", InterfacePrefix: "veth"},
	}
	for _, value := range []reflect.Value{reflect.ValueOf(sent), reflect.ValueOf(sent.DetectLocal)} {
		for i := range value.NumField() {
			if name := value.Type().Field(i).Name; name != "NodeName" && name != "Families" {
				assert.False(t, value.Field(i).IsZero(), "%s has to be sent, too", name)
			}
		}
	}
	got, err := DecodeOptions(EncodeOptions(sent))
	require.NoError(t, err)
	assert.Equal(t, sent, got)

	_, err = DecodeOptions(&remotev1.Options{ExtraSets: 0x101})
	require.ErrorContains(t, err, "extraSets", "sets that a newer client knows are not ignored")
}

func TestWhatIsSentIsWhatArrives(t *testing.T) {
	svc := richService()
	var d Decoder
	got := d.service(svc.Name, marshal(encodeService(svc)))
	require.NoError(t, d.Err())
	assert.True(t, svc.Equal(got), "%v\n%v", svc, got)
	assert.Equal(t, serviceDigest(svc), serviceDigest(got))
	ep := &model.Endpoint{Port: model.PortName{Service: svc.Name, Port: "http", Protocol: model.SCTP},
		Target: netip.MustParseAddrPort("10.0.0.1:80"), Node: "n",
		Sets: model.ClusterSet | model.LocalSet, Local: true, Ready: true, Serving: true, Terminating: true,
		Details: model.NewDetails(model.EndpointDetails{TargetRef: model.TargetRef{Kind: "Pod", Namespace: "a",
			Name: "b", UID: "c"},
			Hostname: "h", Zone: "z", NodeHints: []string{"n"}, ZoneHints: []string{"z", "y"}})}
	assert.Equal(t, []*model.Endpoint{ep}, d.endpoints(svc.Name, [][]byte{marshal(encodeEndpoint(ep))}))
	require.NoError(t, d.Err())
}

// The sender chooses the order of a repeated field; the methods of a part need a certain order.
func TestAPartMayComeInAnyOrder(t *testing.T) {
	var d Decoder
	part := d.part(marshal(&remotev1.NodePart{Namespace: "default", Name: "a", Unselected: []*remotev1.PortFamily{
		{Port: "z", Protocol: remotev1.Protocol_TCP, Family: 4},
		{Port: "b", Protocol: remotev1.Protocol_TCP, Family: 6},
		{Port: "b", Protocol: remotev1.Protocol_TCP, Family: 4},
	}})).Part
	require.NoError(t, d.Err())
	for _, port := range []string{"z", "b"} {
		shared := &model.Endpoint{Port: model.PortName{Service: name("a"), Port: port, Protocol: model.TCP},
			Target: netip.MustParseAddrPort("10.0.0.1:80"), Sets: model.ClusterSet}
		assert.Nil(t, part.Endpoint(localstate.Class{}, shared.Key(), shared), port)
	}
}

func TestAMessageInManyPiecesCostsWhatItsLengthIs(t *testing.T) {
	pieces := bytes.Repeat([]byte{0x82, 1, 2, 8, 7}, 20000) // a health check, again and again
	allocs := testing.AllocsPerRun(1, func() {
		var d Decoder
		assert.EqualValues(t, 7, d.service(name("a"), pieces).HealthCheck.NodePort)
		assert.NoError(t, d.Err())
	})
	assert.Less(t, allocs, 200.0)
}

// spoil puts a byte that is not UTF-8 into every text of a value, and returns how many there are.
func spoil(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "\xff")
		return 1
	case reflect.Pointer:
		return spoil(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			n += spoil(v.Index(i))
		}
	case reflect.Map:
		if v.Type().Elem().Kind() != reflect.String {
			return 0
		}
		spoiled := reflect.MakeMap(v.Type())
		for key, value := range v.Seq2() {
			n += 2
			spoiled.SetMapIndex(reflect.ValueOf(key.String()+"\xff"), reflect.ValueOf(value.String()+"\xff"))
		}
		v.Set(spoiled)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Field(i).CanSet() && v.Type() != reflect.TypeFor[netip.Prefix]() {
				n += spoil(v.Field(i))
			}
		}
	}
	return n
}

// Texts may be invalid UTF-8: the received state must have the digest of the sent one, or everything would be sent
// again and again. Objects that are shared are not changed.
func TestAnyTextMayBeNoUTF8(t *testing.T) {
	svc := richService()
	details := model.EndpointDetails{TargetRef: model.TargetRef{Kind: "Pod", Namespace: "a", Name: "b", UID: "c"},
		Hostname: "h", Zone: "z", NodeHints: []string{"n"}, ZoneHints: []string{"z", "y"}}
	ep := &model.Endpoint{Port: model.PortName{Service: svc.Name, Port: "http", Protocol: model.TCP},
		Target: netip.MustParseAddrPort("10.0.0.1:80"), Node: "n", Sets: model.ClusterSet}
	node := &model.Node{Name: "n", Zone: "z", LocalPods: model.LocalPods{Bridge: "b", InterfacePrefix: "p"}}
	part := &localstate.NodePart{Unselected: []localstate.PortFamily{{Port: "http", Protocol: model.TCP, Family: 4}}}
	assert.Equal(t, 15, spoil(reflect.ValueOf(svc)))
	assert.Equal(t, 4, spoil(reflect.ValueOf(node)))
	assert.Equal(t, 10, spoil(reflect.ValueOf(&details))+spoil(reflect.ValueOf(part)))
	assert.Equal(t, 4, spoil(reflect.ValueOf(ep)))
	ep.Details = model.NewDetails(details)
	part.Endpoints = []*model.Endpoint{ep}
	labels := maps.Clone(svc.Labels)

	var w Chunks
	entry := &sink.ServiceEntry{Service: svc, Endpoints: []*model.Endpoint{ep}}
	w.Change(sink.Change{Name: svc.Name, New: entry})
	w.Own(maps.All(map[model.ServiceName]*localstate.NodePart{svc.Name: part}))
	var d Decoder
	var batch Batch
	all := Join(append(w.Done(), Encode(&remotev1.Update{Node: EncodeNode(node)}))...)
	require.NoError(t, all.err)
	_, err := d.Update(all.Bytes(), nil, &batch)
	require.NoError(t, err)
	require.NoError(t, d.Err())
	assert.Equal(t, labels, svc.Labels)
	got := batch.Services[0][0]
	require.Len(t, got.Endpoints, 1)
	assert.Equal(t, serviceDigest(svc), serviceDigest(got.Service))
	assert.Equal(t, endpointDigest(ep), endpointDigest(got.Endpoints[0]))
	assert.Equal(t, PartDigest(svc.Name, part), PartDigest(batch.Own[0].Name, batch.Own[0].Part))
	assert.Equal(t, NodeDigest(node), NodeDigest(batch.Node))
	assert.Equal(t, BucketOf(svc.Name), BucketOf(got.Name))
}
