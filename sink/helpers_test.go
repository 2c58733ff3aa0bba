package sink_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func name(s string) model.ServiceName { return model.ServiceName{Namespace: "ns", Name: s} }

// service returns a service with the ports http/TCP and dns/UDP. Services that differ in the IP's last byte differ.
func service(svc string, ip byte) *model.Service {
	return &model.Service{
		Name:       name(svc),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, ip})},
		Ports: []model.ServicePort{
			{Name: "http", Protocol: model.TCP, Port: 80},
			{Name: "dns", Protocol: model.UDP, Port: 53},
		},
	}
}

func key(svc, port string, protocol model.Protocol, target string) model.EndpointKey {
	return model.EndpointKey{
		Port:   model.PortName{Service: name(svc), Port: port, Protocol: protocol},
		Target: netip.MustParseAddrPort(target),
	}
}

func httpKey(svc, target string) model.EndpointKey { return key(svc, "http", model.TCP, target) }

func endpoint(k model.EndpointKey, sets model.EndpointSets) *model.Endpoint {
	return &model.Endpoint{Port: k.Port, Target: k.Target, Sets: sets, Ready: true, Serving: true}
}

func httpEndpoint(svc, target string) *model.Endpoint {
	return endpoint(httpKey(svc, target), model.ClusterSet)
}

// naive is the state of a sink kept in plain maps, to compare with.
type naive struct {
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
}

func newNaive() *naive {
	return &naive{services: map[model.ServiceName]*model.Service{}, endpoints: map[model.EndpointKey]*model.Endpoint{}}
}

func (n *naive) SetNode(node *model.Node)             { n.node = node }
func (n *naive) SetService(s *model.Service)          { n.services[s.Name] = s }
func (n *naive) DeleteService(name model.ServiceName) { delete(n.services, name) }
func (n *naive) SetEndpoint(e *model.Endpoint)        { n.endpoints[e.Key()] = e }
func (n *naive) DeleteEndpoint(key model.EndpointKey) { delete(n.endpoints, key) }

// describer has the Set and Delete methods of a sink.
type describer interface {
	SetNode(*model.Node)
	SetService(*model.Service)
	DeleteService(model.ServiceName)
	SetEndpoint(*model.Endpoint)
	DeleteEndpoint(model.EndpointKey)
}

// randomCall makes one call to all sinks, see pickCall.
func randomCall(r *rand.Rand, services int, sinks ...describer) { pickCall(r.IntN, services, sinks...) }

// pickCall makes one call to all sinks, chosen by intn, which returns a number below its argument. There are few names,
// so that calls often concern the same object. The order is arbitrary: endpoints may come before their service and stay
// after it.
func pickCall(intn func(int) int, services int, sinks ...describer) {
	svc := fmt.Sprintf("svc-%02d", intn(services))
	port, protocol := "http", model.TCP
	if intn(3) == 0 {
		port, protocol = "dns", model.UDP
	}
	target := fmt.Sprintf("10.0.0.%d:80", intn(5))
	if intn(4) == 0 {
		target = fmt.Sprintf("[fd00::%d]:80", intn(3))
	}
	k := key(svc, port, protocol, target)
	var call func(s describer)
	switch intn(12) {
	case 0:
		call = func(s describer) { s.DeleteService(k.Port.Service) }
	case 1, 2, 3:
		v := service(svc, byte(intn(2)))
		call = func(s describer) { s.SetService(v) }
	case 4, 5, 6:
		call = func(s describer) { s.DeleteEndpoint(k) }
	case 7:
		v := &model.Node{Name: fmt.Sprintf("node-%d", intn(2))}
		call = func(s describer) { s.SetNode(v) }
	default:
		v := endpoint(k, model.EndpointSets(intn(2)+1))
		call = func(s describer) { s.SetEndpoint(v) }
	}
	for _, s := range sinks {
		call(s)
	}
}

// picker returns an intn for pickCall that reads its decisions from data, and a function that reports whether data is
// used up.
func picker(data []byte) (intn func(int) int, done func() bool) {
	intn = func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b) % n
	}
	return intn, func() bool { return len(data) == 0 }
}

// addRandom adds inputs for picker to a fuzz test, so that it also tests something without fuzzing.
func addRandom(f *testing.F) {
	r := rand.NewChaCha8([32]byte{1})
	for range 30 {
		data := make([]byte, 500)
		_, _ = r.Read(data)
		f.Add(data)
	}
}
