package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// notInMessage reports whether a field differs between the nodes of a class: such fields are in a NodePart.
func notInMessage(path string) bool { return strings.HasPrefix(path, "HealthCheck.LocalEndpoints.") }

// alwaysZero reports whether a field is zero in all that localstate hands over: the node's own traffic is never dropped
// (see model.NewRoutes).
func alwaysZero(path string) bool { return strings.HasSuffix(path, ".ExternalFromNode.Empty") }

// carrier is a type of the model, and the places that have to know each of its fields.
type carrier struct {
	equalIn, filledIn, encodedIn, decodedIn string
	value                                   func() any // a pointer to a value that decodes
	equal                                   func(a, b any) bool
	encode                                  func(any) proto.Message
	decode                                  func(*Decoder, []byte) any
	digest                                  func(any) Digest
	filled                                  []any // what localstate makes of objects that have everything
}

// TestANewFieldIsCarriedEverywhere fails for a field of the model that some place leaves out, and names the files to
// edit.
func TestANewFieldIsCarriedEverywhere(t *testing.T) {
	services, endpoints, nodes := everything(t)
	owner := name("a")
	port := model.PortName{Service: owner, Port: "http", Protocol: model.TCP}
	for kind, c := range map[string]carrier{
		"Service": {"model/service.go: Equal", "localstate/service.go", "encode.go", "decodeservice.go",
			func() any {
				return &model.Service{Name: owner, HealthCheck: &model.HealthCheck{},
					Ports: []model.ServicePort{{Protocol: model.TCP}}}
			},
			func(a, b any) bool { return a.(*model.Service).Equal(b.(*model.Service)) },
			func(v any) proto.Message {
				s := v.(*model.Service)
				return (&Delta{Name: s.Name, ServiceChanged: true, New: s}).encode()
			},
			func(d *Decoder, b []byte) any { return d.change(b).Service },
			func(v any) Digest { return serviceDigest(v.(*model.Service)) }, services},
		"Endpoint": {"model/endpoint.go: Equal", "localstate/entries.go and slice.go", "encode.go", "fields.go",
			func() any { return &model.Endpoint{Port: port, Target: netip.MustParseAddrPort("10.0.0.1:80")} },
			func(a, b any) bool { return a.(*model.Endpoint).Equal(b.(*model.Endpoint)) },
			func(v any) proto.Message {
				e := v.(*model.Endpoint)
				return (&Delta{Name: e.Port.Service, Endpoints: []EndpointDelta{{New: e}}}).encode()
			},
			func(d *Decoder, b []byte) any { return d.change(b).Endpoints[0] },
			func(v any) Digest { return endpointDigest(v.(*model.Endpoint)) }, endpoints},
		"Node": {"model/node.go: Equal", "localstate/node.go", "encode.go", "decode.go",
			func() any { return &model.Node{Name: "n"} },
			func(a, b any) bool { return a.(*model.Node).Equal(b.(*model.Node)) },
			func(v any) proto.Message { return EncodeNode(v.(*model.Node)) },
			func(d *Decoder, b []byte) any {
				var n remotev1.Node
				require.NoError(t, proto.Unmarshal(b, &n))
				return d.node(&n)
			},
			func(v any) Digest { return NodeDigest(v.(*model.Node)) }, nodes},
	} {
		leaves := leavesOf(t, c.value())
		for _, path := range slices.Sorted(maps.Keys(leaves)) {
			t.Run(kind+"."+path, func(t *testing.T) {
				if missing := c.placesWithout(t, path); len(missing) > 0 {
					t.Errorf("not carried through\n\t%s", strings.Join(missing, "\n\t"))
				}
			})
		}
	}
}

// placesWithout returns the places that leave a field out.
func (c *carrier) placesWithout(t *testing.T, path string) (places []string) {
	const wire = "remote/internal/wire/"
	plain, v := c.value(), c.value()
	leavesOf(t, v)[path]()
	if c.equal(plain, v) {
		places = append(places, c.equalIn)
	}
	text, err := json.Marshal(v)
	require.NoError(t, err)
	back := reflect.New(reflect.TypeOf(v).Elem()).Interface()
	require.NoError(t, json.Unmarshal(text, back))
	if !c.equal(back, v) {
		places = append(places, strings.Replace(c.equalIn, "Equal", "MarshalJSON, or a tag", 1))
	}
	isFilled := func(f any) bool { return !isZeroAt(reflect.ValueOf(f), strings.Split(path, ".")) }
	if !alwaysZero(path) && !slices.ContainsFunc(c.filled, isFilled) {
		places = append(places, c.filledIn+", or everything in this test")
	}
	if notInMessage(path) {
		return places
	}
	var d Decoder
	switch encoded := c.encode(v); {
	case proto.Equal(encoded, c.encode(plain)):
		places = append(places, "remote/v1/remote.proto", wire+c.encodedIn)
		fallthrough // what is not sent cannot be decoded
	default:
		if got := c.decode(&d, marshal(encoded)); d.Err() != nil || !c.equal(got, v) {
			places = append(places, wire+c.decodedIn+", and its reference in wire_fuzz_test.go")
		}
	}
	if c.digest(v) == c.digest(plain) {
		places = append(places, wire+"digest.go, with another DigestVersion")
	}
	return places
}

// leavesOf returns, for each field of a value and of the structs in it, a function that sets it to another value.
func leavesOf(t *testing.T, v any) map[string]func() {
	all := map[string]func(){}
	addLeaves(t, reflect.ValueOf(v), "", all)
	return all
}

func addLeaves(t *testing.T, v reflect.Value, path string, all map[string]func()) {
	set := func(to any) { all[path] = func() { v.Set(reflect.ValueOf(to).Convert(v.Type())) } }
	switch x := v.Interface().(type) {
	case netip.AddrPort:
		set(netip.MustParseAddrPort("10.0.0.9:9"))
	case []netip.Addr:
		set([]netip.Addr{netip.MustParseAddr("10.0.0.9")})
	case []netip.Prefix:
		set([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
	case time.Time:
		set(time.Unix(9, 0).UTC())
	case time.Duration:
		set(9 * time.Second)
	case model.Protocol:
		set(model.UDP)
	case model.Details:
		d := x.Get()
		within := map[string]func(){}
		addLeaves(t, reflect.ValueOf(&d).Elem(), path, within)
		for path, setField := range within {
			all[path] = func() { setField(); v.Set(reflect.ValueOf(model.NewDetails(d))) }
		}
	case map[string]string:
		set(map[string]string{"key": "value"})
	case []string:
		set([]string{"value"})
	case string:
		set("other")
	case bool:
		set(true)
	default:
		switch v.Kind() {
		case reflect.Int, reflect.Uint8, reflect.Uint16:
			set(1)
		case reflect.Pointer:
			addLeaves(t, v.Elem(), path, all)
		case reflect.Slice: // of structs
			addLeaves(t, v.Index(0), path, all)
		case reflect.Struct:
			for i := range v.NumField() {
				addLeaves(t, v.Field(i), strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), all)
			}
		default:
			require.Fail(t, "addLeaves has to learn about a type", "%s is a %v", path, v.Type())
		}
	}
}

// isZeroAt reports whether a field has its zero value; in a list, whether it has so in all elements.
func isZeroAt(v reflect.Value, path []string) bool {
	if d, ok := v.Interface().(model.Details); ok {
		v = reflect.ValueOf(d.Get())
	}
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return isZeroAt(v.Elem(), path)
	case len(path) == 0 || v.IsZero():
		return v.IsZero()
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			if !isZeroAt(v.Index(i), path) {
				return false
			}
		}
		return true
	}
	return isZeroAt(v.FieldByName(path[0]), path[1:])
}

// everything returns what localstate makes of objects that together have something for every field of the model.
func everything(t *testing.T) (services, endpoints, nodes []any) {
	services = append(services, richService())
	for _, detect := range []localstate.DetectLocal{{}, {Bridge: "cbr0"}, {InterfacePrefix: "veth"}, {NodeCIDR: true}} {
		var rec sink.Recorder
		state, err := localstate.New(context.Background(),
			localstate.Options{NodeName: "n1", DetectLocal: detect, AllEndpoints: true},
			localstate.ClusterOptions{HeadlessServices: true, ExternalNameServices: true, EndpointDetails: true,
				EndpointLimits: localstate.EndpointLimits{Service: 8}})
		require.NoError(t, err)
		headless := kube.Service("default/headless").ClusterIP("None").Build()
		named := kube.Service("default/named").Build()
		named.Spec.Type, named.Spec.ExternalName, named.Spec.ClusterIP = corev1.ServiceTypeExternalName, "example.com", ""
		cluster := kube.Service("default/cluster").ClusterIP("10.96.0.8", "fd00::8").Port("http", 80).NodePort(30080).Build()
		local := kube.Service("default/a").Type(corev1.ServiceTypeLoadBalancer).ClusterIP("10.96.0.9", "fd00::9").
			Port("http", 80).NodePort(30081).ExternalLocal().InternalLocal().HealthCheckNodePort(31001).Build()
		local.Spec.Ports[0].AppProtocol = new(string)
		*local.Spec.Ports[0].AppProtocol = "kubernetes.io/h2c"
		slice := kube.EndpointSlice("default/a").Port("http", 8080).
			Endpoint("10.1.0.1").OnNode("n1").InZone("z").Pod("p").ForZones("z").ForNodes("n1").
			Endpoint("10.1.0.2").OnNode("n1").Terminating().Build()
		slice.Endpoints[0].Hostname = new(string)
		*slice.Endpoints[0].Hostname = "h"
		slice.Endpoints[0].TargetRef.UID = "u"
		v6 := kube.EndpointSlice("default/a").Name("six").AddressType(discoveryv1.AddressTypeIPv6).Port("http", 8080).
			Endpoint("fd00:1::1").OnNode("n1").Build()
		many := kube.Service("default/many").ClusterIP("10.96.0.10")
		for port := range int32(9) {
			many.Port(fmt.Sprintf("p%d", port), 1+port)
		}
		manySlice := kube.EndpointSlice("default/many").Port("p0", 8080).Endpoint("10.1.0.1").Build()
		node := kube.Node("n1").Zone("z").InternalIP("192.0.2.1").PodCIDR("10.1.0.0/24").
			Taint("ToBeDeletedByClusterAutoscaler").Build()
		for _, object := range []metav1.Object{headless, named, cluster, local, slice, v6, node,
			many.Build(), manySlice, kube.ServiceCIDR("kubernetes", "10.96.0.0/16")} {
			_, err := state.Apply(object, false)
			require.NoError(t, err)
		}
		state.Flush(&rec)
		for _, s := range rec.Services() {
			services = append(services, s)
		}
		for _, e := range rec.Endpoints() {
			endpoints = append(endpoints, e)
		}
		nodes = append(nodes, rec.Node())
	}
	return services, endpoints, nodes
}
