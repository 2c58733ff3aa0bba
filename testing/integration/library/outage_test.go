package library_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// TestAnOutageCostsWhatChangedMeanwhile cuts proxies off from the API server, changes the cluster, and reconnects them.
// They must receive everything that changed, and nothing else.
func TestAnOutageCostsWhatChangedMeanwhile(t *testing.T) {
	for _, tc := range []struct {
		name   string
		outage func(o outage)
		// tooOld: the API server no longer has the changes of the outage, and says so.
		tooOld bool
	}{
		{
			name: "the connection is lost",
			outage: func(o outage) {
				o.cut.Cut()
				o.refused.Refuse()
				o.changes()
			},
		},
		{
			name: "the API server is killed and comes back",
			outage: func(o outage) {
				o.cut.Cut()
				o.refused.Refuse()
				o.StopAPIServer()
				o.StartAPIServer()
				o.changes()
			},
		},
		{
			name: "the API server is killed and comes back, and what happened before is compacted",
			outage: func(o outage) {
				o.cut.Cut()
				o.refused.Refuse()
				o.changes()
				o.StopAPIServer()
				o.Compact()
				o.StartAPIServer()
			},
			tooOld: true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{})
			w := newWriter(t, c)
			const services = 10
			for i := range services {
				w.serve(fmt.Sprint("s", i), nil, fmt.Sprint("10.1.0.", i), fmt.Sprint("10.2.0.", i))
			}

			// Of the proxies that are cut off, one finds an API server that ends its connections, and two find none.
			// The last one is not cut off, and notices only outages of the API server itself.
			here := func(f func() error) { require.NoError(t, f()) }
			cut, refused := c.Relay(t, here), c.Relay(t, here)
			var proxies []*proxy
			var wires []*wire
			for _, kind := range []struct {
				name string
				port int
				make newSource
			}{
				{"clientset that is cut off", cut.Port, clientset},
				{"clientset that is refused", refused.Port, clientset},
				{"informers that are refused", refused.Port, sharedInformers},
				{"clientset beside", c.Port(), clientset},
			} {
				config := rest.CopyConfig(c.Config)
				config.Host = fmt.Sprint("https://127.0.0.1:", kind.port)
				client, recorded := recordedClient(t, config)
				wires = append(wires, recorded)
				proxies = append(proxies, startProxy(t, kind.name, kind.make(t, client, ""), ""))
			}
			for _, p := range proxies {
				p.await("everything", func() bool { return len(p.state()) == 3*services })
			}
			w.serve("first", nil, "10.1.0.99") // now they watch
			for _, p := range proxies {
				p.await("the first change",
					func() bool { return slices.Contains(p.state(), "first -> 10.1.0.99:8080") })
				p.takeCalls()
			}

			tc.outage(outage{Cluster: c, cut: cut, refused: refused, changes: func() {
				w.serve("new", nil, "10.1.0.100")
				w.remove("s3")
				w.change("s5", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} })
				w.changeSlice("s7", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "10.3.0.7" })
				w.moveNode("zone-a")
			}})
			cut.Restore()
			refused.Restore()

			want := []string{
				"SetService new", "SetEndpoint new -> 10.1.0.100:8080",
				"DeleteService s3", "DeleteEndpoint s3 -> 10.1.0.3:8080", "DeleteEndpoint s3 -> 10.2.0.3:8080",
				"SetService s5",
				"DeleteEndpoint s7 -> 10.1.0.7:8080", "SetEndpoint s7 -> 10.3.0.7:8080",
				"SetNode",
			}
			for _, p := range proxies {
				p.await("what changed", func() bool {
					state, s5 := p.state(), p.Services()[model.ServiceName{Namespace: "default", Name: "s5"}]
					return slices.Contains(state, "new -> 10.1.0.100:8080") && !slices.Contains(state, "s3") &&
						len(s5.ExternalIPs) == 1 && slices.Contains(state, "s7 -> 10.3.0.7:8080") &&
						p.Node().Zone == "zone-a"
				})
			}
			// One more change of each kind: when it has arrived, so have all the changes before it.
			w.serve("last", nil, "10.1.0.101")
			w.moveNode("zone-b")
			last := netip.MustParsePrefix("10.200.0.0/24")
			w.create(kube.ServiceCIDR("last", last.String()))
			want = append(want, "SetService last", "SetEndpoint last -> 10.1.0.101:8080")
			slices.Sort(want)
			for _, p := range proxies {
				p.await("the last changes", func() bool {
					return p.Node().Zone == "zone-b" && slices.Contains(p.Node().ServiceCIDRs, last) &&
						slices.Contains(p.state(), "last -> 10.1.0.101:8080")
				})
				assert.Equal(t, want, p.takeCalls(), "%s: no more and no less", p.name)
			}
			if tc.tooOld {
				for _, refused := range wires[1:3] {
					assert.True(t, refused.holds("too old resource version"))
					assert.Greater(t, refused.lists("services"), 1, "so it had to list again")
				}
			}
		})
	}
}

// outage is what an outage consists of.
type outage struct {
	*cluster.Cluster
	cut, refused *cluster.Relay
	changes      func() // to the cluster
}
