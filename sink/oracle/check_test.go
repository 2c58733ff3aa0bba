package oracle

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestCheck(t *testing.T) {
	delivered := func(endpoint, source string) Observation {
		return Observation{Verdict: Deliver, Endpoint: netip.MustParseAddrPort(endpoint), Source: addr(source)}
	}
	rejected, dropped := Observation{Verdict: Reject}, Observation{Verdict: Drop}
	const fromPod, fromOutside = "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
		"external 203.0.113.7 -> 198.51.100.10:80/TCP"
	tests := []struct {
		name   string
		change func(*fixture)
		flow   string
		seen   Observation
		fails  bool
	}{
		{"one of the endpoints with the client's address is right", nil, fromPod,
			delivered("10.244.2.5:8080", "10.244.1.9"), false},
		{"a translated source that should not be is wrong", nil, fromPod, delivered("10.244.2.5:8080", nodeIP), true},
		{"an address of the node as source is right where translated", nil, fromOutside,
			delivered("10.244.2.5:8080", nodeIP), false},
		{"any address of the node as source is right where translated", nil, fromOutside,
			delivered("10.244.2.5:8080", nodeIP2), false},
		{"the client's own source is wrong where translated", nil, fromOutside, delivered("10.244.2.5:8080", client),
			true},
		{"a foreign source is wrong", nil, fromOutside, delivered("10.244.2.5:8080", "192.0.2.9"), true},
		{"another endpoint is wrong", nil, fromPod, delivered("10.244.2.6:8080", "10.244.1.9"), true},
		{"another port is wrong", nil, fromPod, delivered("10.244.2.5:8081", "10.244.1.9"), true},
		{"a reject is wrong where it should be delivered", nil, fromPod, rejected, true},
		{"a reject is wrong whichever endpoint is named with it", nil, fromPod,
			Observation{Reject, netip.MustParseAddrPort("10.244.2.5:8080"), addr("10.244.1.9")}, true},
		{"a drop is wrong where it should be delivered", nil, fromPod, dropped, true},
		{"a reject is right where the set is empty", nobody, fromPod, rejected, false},
		{"a drop is wrong where it should be rejected", nobody, fromPod, dropped, true},
		{"a delivery is wrong where it should be rejected", nobody, fromPod, delivered("10.244.2.5:8080", "10.244.1.9"),
			true},
		{"a reject is wrong where it should be dropped", all(internalLocal, onlyRemote), fromPod, rejected, true},
		{"an alternative is right", all(nobody, ranges("192.0.2.0/24")), "external 203.0.113.7 -> 198.51.100.20:80/TCP",
			rejected, false},
		{"a delivery at an unknown port is wrong", nil, "local pod 10.244.1.9 -> 10.96.0.10:81/TCP",
			delivered("10.244.2.5:8080", "10.244.1.9"), true},
		{"where nothing is ours the destination itself is right", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP",
			delivered("10.244.1.5:8080", client), false},
		{"what is not ours goes on as it came", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP",
			Observation{Verdict: NotOurs}, false},
		{"nobody but the backend refuses what is not ours", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP",
			rejected, true},
		{"the node refuses what no process of it serves", nil, "external 203.0.113.7 -> " + nodeIP + ":9999/TCP",
			rejected, false},
		{"nobody but the backend drops what is not ours", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP", dropped,
			true},
		{"nor on the node", nil, "external 203.0.113.7 -> " + nodeIP + ":9999/TCP", dropped, true},
		{"what is ours must not go on as it came", nil, fromPod, Observation{Verdict: NotOurs}, true},
		{"where nothing is ours another destination is wrong", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP",
			delivered("10.244.2.5:8080", client), true},
		{"where nothing is ours a translated source is wrong", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP",
			delivered("10.244.1.5:8080", nodeIP), true},
		{"no observation is wrong", nil, fromPod, Observation{}, true},
		{"no observation is wrong where nothing is ours too", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP",
			Observation{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			if tt.change != nil {
				tt.change(f)
			}
			o := f.oracle(t)
			want, err := o.Expect(flow(t, tt.flow))
			require.NoError(t, err)
			err = o.Check(want, tt.seen)
			if !tt.fails {
				assert.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), tt.flow, "the error names the flow")
			assert.Contains(t, err.Error(), tt.seen.String(), "the error says what was seen")
			assert.Contains(t, err.Error(), want.String(), "the error says what was expected and why")
		})
	}
}

func TestFlowsThatAreNone(t *testing.T) {
	good := flow(t, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP")
	require.NoError(t, good.validate())
	tests := []struct {
		name  string
		spoil func(*Flow)
		want  string
	}{
		{"no source kind", func(f *Flow) { f.From = 0 }, "unknown source kind 0"},
		{"an unknown source kind", func(f *Flow) { f.From = External + 1 }, "unknown source kind 5"},
		{"no source", func(f *Flow) { f.Source = netip.Addr{} }, "source address invalid IP is not valid"},
		{"a mapped source", func(f *Flow) { f.Source = addr("::ffff:10.0.0.1") },
			"source address ::ffff:10.0.0.1 is not valid"},
		{"no destination", func(f *Flow) { f.Destination = netip.AddrPort{} }, "is not valid"},
		{"a mapped destination", func(f *Flow) { f.Destination = netip.MustParseAddrPort("[::ffff:10.0.0.1]:80") },
			"is not valid"},
		{"no port", func(f *Flow) { f.Destination = netip.MustParseAddrPort("10.96.0.10:0") },
			"10.96.0.10:0 is not valid"},
		{"two families", func(f *Flow) { f.Source = addr("fd44:1::9") }, "different families"},
		{"no protocol", func(f *Flow) { f.Protocol = 0 }, "unknown protocol"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := good
			tt.spoil(&f)
			got, err := newFixture().oracle(t).Expect(f)
			require.ErrorContains(t, err, tt.want)
			assert.ErrorContains(t, err, "flow ")
			assert.Zero(t, got)
		})
	}
}

func TestStatesThatContradictThemselves(t *testing.T) {
	f := newFixture()
	_, err := New(State{Services: []*model.Service{&f.service}}, Config{})
	require.ErrorContains(t, err, "no node")

	_, err = New(State{Node: &f.node, Services: []*model.Service{&f.service, &f.service}}, Config{})
	require.ErrorContains(t, err, "duplicate service default/web")

	_, err = New(State{Node: &f.node, Endpoints: f.endpoints}, Config{})
	require.ErrorContains(t, err, "endpoint default/web:http/TCP -> 10.244.1.5:8080 belongs to no service port")
	require.ErrorContains(t, err, "endpoint default/web:http/TCP -> 10.244.2.5:8080 belongs to no service port")

	other := local(localPod, 0)
	other.Port.Protocol = model.UDP
	_, err = New(State{Node: &f.node, Services: []*model.Service{&f.service}, Endpoints: []*model.Endpoint{other}},
		Config{})
	require.ErrorContains(t, err, "endpoint default/web:http/UDP -> 10.244.1.5:8080 belongs to no service port")

	_, err = New(State{Node: &f.node, Services: []*model.Service{&f.service},
		Endpoints: append(f.endpoints, f.endpoints[0])}, Config{})
	require.ErrorContains(t, err, "duplicate endpoint default/web:http/TCP -> 10.244.1.5:8080")
}

func TestStateIsReadable(t *testing.T) {
	f := newFixture()
	f.policy.ExternalAddresses = false
	f.service.ExternalIPs, f.service.LoadBalancerIPs, f.service.Ports[0].NodePort = nil, nil, 0
	f.service.ClusterIPs = f.service.ClusterIPs[:1]
	f.setRoutes(&f.service, f.policy)
	f.service.Ports[0].Routes.IPv6 = model.Routes{}
	f.bare("abba", 81, func(s *model.Service) { s.ClusterIPs = []netip.Addr{addr("10.96.0.9")} })
	f.others[0].Ports[0].Routes.IPv6 = model.Routes{}
	f.endpoints[0], f.endpoints[1] = f.endpoints[1], f.endpoints[0]
	state := State{Node: &model.Node{Name: "n1"}, Services: []*model.Service{&f.service, f.others[0]},
		Endpoints: f.endpoints}
	assert.Equal(t, `node n1
service default/abba cluster-ips=10.96.0.9
  http 81/TCP
    IPv4 cluster IP: Cluster, masquerade UnlessLocalPod, if empty Reject
service default/web cluster-ips=10.96.0.10
  http 80/TCP
    IPv4 cluster IP: Cluster, masquerade UnlessLocalPod, if empty Reject
  endpoint default/web:http/TCP -> 10.244.1.5:8080 sets=Cluster,Local local
  endpoint default/web:http/TCP -> 10.244.2.5:8080 sets=Cluster
`, state.String())
	assert.Empty(t, State{}.String())
}
