package localstate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// holding are options that hold the endpoints of ns/web, but not of ns/api.
var holding = options{Options{NodeName: me},
	ClusterOptions{HoldEndpoints: []model.ServiceName{{Namespace: namespace, Name: "web"}}}}

func TestTheLastEndpointsOfAServiceAreHeld(t *testing.T) {
	ipv6 := ofType(discoveryv1.AddressTypeIPv6)
	web, api := aService("web"), aService("api")
	first := aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2"))
	none := []string{}
	httpAndAdmin := slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("admin", "TCP", 9090))
	for _, tc := range []struct {
		name  string
		event func(w *world)
		want  []string
	}{
		{"S66 the slice is deleted", func(w *world) { w.delete(first) }, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 the slice is empty", func(w *world) { w.set(aSlice("web-1")) }, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 no endpoint is ready",
			func(w *world) { w.set(aSlice("web-1", ep("10.1.0.1", unready), ep("10.1.0.2", dead))) },
			[]string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 the slice has no port any more", func(w *world) { w.set(aSlice("web-1", slicePorts(), ep("10.1.0.9"))) },
			[]string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 no address is valid", func(w *world) { w.set(aSlice("web-1", ep("bogus"))) },
			[]string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 the slice loses its service", func(w *world) { w.set(aSlice("web-1", ofService(""), ep("10.1.0.1"))) },
			[]string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 the last one that is ready", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.1", unready), ep("10.1.0.2")))
			w.delete(first)
		}, []string{"10.1.0.2:8080"}},
		{"S66 the last one that serves while it terminates", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.1", draining), ep("10.1.0.2", dead)))
			w.set(aSlice("web-1", ep("10.1.0.1", dead), ep("10.1.0.2", dead)))
		}, []string{"10.1.0.1:8080"}},
		{"S66 of several slices that of the last one", func(w *world) {
			w.set(aSlice("web-2", ep("10.1.0.9")))
			w.delete(first)
			w.delete(aSlice("web-2"))
		}, []string{"10.1.0.9:8080"}},
		{"S66 the Service changes meanwhile", func(w *world) {
			w.delete(first)
			w.set(aService("web", ports(tcp("http", 81)), internalLocal, externalIPs("192.0.2.1")))
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 others that are not usable are added and deleted", func(w *world) {
			w.delete(first)
			w.set(aSlice("web-2", ep("10.1.0.9", unready)))
			w.delete(aSlice("web-2"))
			w.set(aSlice("web-3", ep("10.1.0.9", unready)))
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},

		{"S66 they are freed by a usable one", func(w *world) {
			w.delete(first)
			w.set(aSlice("web-2", ep("10.1.0.9")))
		}, []string{"10.1.0.9:8080"}},
		{"S66 also by one that serves while it terminates", func(w *world) {
			w.delete(first)
			w.set(aSlice("web-2", ep("10.1.0.8", unready), ep("10.1.0.9", draining)))
		}, []string{"10.1.0.9:8080"}},
		{"S66 and by one in the same slice", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.1", unready)))
			w.set(aSlice("web-1", ep("10.1.0.1", unready), ep("10.1.0.9")))
		}, []string{"10.1.0.9:8080"}},
		{"S66 not by one of the other family", func(w *world) {
			w.delete(first)
			w.set(aSlice("web-2", ipv6, ep("fd01::1")))
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 each family has its own", func(w *world) {
			w.set(aService("web", clusterIPs("10.0.0.1", "fd00::1")), aSlice("web-2", ipv6, ep("fd01::1")))
			w.delete(first)
			w.delete(aSlice("web-2"))
			w.set(aSlice("web-3", ep("10.1.0.9")))
		}, []string{"10.1.0.9:8080", "[fd01::1]:8080"}},

		{"S66 the slice has another port", func(w *world) {
			w.set(aSlice("web-1", slicePorts(slicePortObject("other", "TCP", 8080)), ep("10.1.0.9")))
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 the slice has the port with another protocol", func(w *world) {
			w.set(aSlice("web-1", slicePorts(slicePortObject("http", "UDP", 8080)), ep("10.1.0.9")))
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 not if the Service renames the port, too", func(w *world) {
			w.set(aSlice("web-1", slicePorts(slicePortObject("other", "TCP", 8080)), ep("10.1.0.9")))
			w.set(aService("web", ports(tcp("other", 80))))
		}, []string{"10.1.0.9:8080"}},
		{"S66 a port that the Service had meanwhile not is not held", func(w *world) {
			w.delete(first)
			w.set(aService("web", ports(tcp("other", 80))), web)
		}, none},
		{"S66 each port has its own", func(w *world) {
			w.set(aService("web", ports(tcp("http", 80), tcp("admin", 81))))
			w.set(aSlice("web-1", httpAndAdmin, ep("10.1.0.1")))
			w.set(aSlice("web-1", slicePorts(slicePortObject("admin", "TCP", 9090)), ep("10.1.0.9")))
		}, []string{"10.1.0.9:9090", "10.1.0.1:8080"}},
		{"S66 also if slices differ by port", func(w *world) {
			w.set(aService("web", ports(tcp("http", 80), tcp("admin", 81))))
			w.set(aSlice("web-2", slicePorts(slicePortObject("admin", "TCP", 9090)), ep("10.1.0.9")))
			w.set(aSlice("web-1", ep("10.1.0.7", unready)))
			w.set(aSlice("web-2", slicePorts(slicePortObject("admin", "TCP", 9090)), ep("10.1.0.8")))
		}, []string{"10.1.0.8:9090", "10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 ports that are lost one after the other", func(w *world) {
			w.set(aService("web", ports(tcp("http", 80), tcp("admin", 81))))
			w.set(aSlice("web-1", httpAndAdmin, ep("10.1.0.1")))
			w.set(aSlice("web-1", slicePorts(slicePortObject("admin", "TCP", 9090)), ep("10.1.0.9")))
			w.delete(first)
		}, []string{"10.1.0.9:9090", "10.1.0.1:8080"}},
		{"S66 ports that are lost together, and one comes back", func(w *world) {
			w.set(aService("web", ports(tcp("http", 80), tcp("admin", 81))))
			w.set(aSlice("web-1", httpAndAdmin, ep("10.1.0.1")))
			w.delete(first)
			w.set(aSlice("web-2", ep("10.1.0.7")))
		}, []string{"10.1.0.1:9090", "10.1.0.7:8080"}},
		{"S66 a slice that comes back in the other family", func(w *world) {
			w.set(aService("web", clusterIPs("10.0.0.1", "fd00::1")))
			w.delete(first)
			w.set(aSlice("web-1", ipv6, ep("fd01::1")))
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080", "[fd01::1]:8080"}},

		{"S66 a Service that is deleted has none", func(w *world) { w.delete(web, first); w.set(web) }, none},
		{"S66 nor has it any if it is deleted later", func(w *world) { w.delete(first, web); w.set(web) }, none},
		{"S66 nor one that this proxy does not serve any more", func(w *world) {
			w.delete(first)
			w.set(aService("web", func(obj *corev1.Service) { obj.Spec.ClusterIP = "None" }), web)
		}, none},
		{"S66 endpoints that were lost before the Service came are not held", func(w *world) {
			w.delete(web, first)
			w.set(aSlice("web-1", ep("10.1.0.1")))
			w.delete(first)
			w.set(web)
		}, none},
		{"S66 a slice that moves to another service is there, and held here", func(w *world) {
			w.set(aSlice("web-1", ofService("api"), ep("10.1.0.1")))
			w.flush()
			require.Equal(w.t, []string{"10.1.0.1:8080"}, w.clusterSet("api"))
			w.delete(first)
			w.flush()
			require.Empty(w.t, w.clusterSet("api"), "nothing holds it there")
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"S66 it comes back", func(w *world) {
			w.set(aSlice("web-1", ofService("api"), ep("10.1.0.7")))
			w.set(aSlice("web-1", ep("10.1.0.9")))
		}, []string{"10.1.0.9:8080"}},
		{"S66 endpoints that come back as they were", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.1", unready), ep("10.1.0.2", unready)))
			w.set(first)
		}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, between := range []bool{false, true} {
				for _, indexAbove := range []int{0, indexAbove} {
					w := newWorldWith(t, holding, web, api, first)
					w.state.indexAbove, w.flushes = indexAbove, between
					tc.event(w)
					w.flush()
					assert.Equal(t, tc.want, w.clusterSet("web"))
					require.Empty(t, checkExplanations(w.state, w.got))
					for _, name := range []string{"web-1", "web-2", "web-3"} {
						w.delete(aSlice(name))
					}
					w.delete(web, api)
					w.flush()
					require.Empty(t, w.got.endpoints)
					requireNothingKept(t, w.state)
				}
			}
		})
	}
}

// A Service that is not named gets the endpoints that its slices have.
func TestEndpointsOfOthersAreNotHeld(t *testing.T) {
	w := newWorldWith(t, holding, aService("api"), aSlice("api-1", ofService("api"), ep("10.1.0.1")))
	w.delete(aSlice("api-1"))
	w.flush()
	assert.Empty(t, w.endpoints("api"))
	other := aService("web")
	other.Namespace = "ns2"
	slice := aSlice("web-1", ep("10.1.0.1"))
	slice.Namespace = "ns2"
	w.set(other, slice)
	w.delete(slice)
	w.flush()
	assert.Empty(t, w.got.endpoints, "a name is one with its namespace")
}

func TestNamesOfHeldServicesAreChecked(t *testing.T) {
	for _, name := range []model.ServiceName{{Name: "kubernetes"}, {Namespace: "default"}, {}} {
		_, err := New(t.Context(), Options{}, ClusterOptions{HoldEndpoints: []model.ServiceName{name}})
		assert.ErrorContains(t, err, "hold endpoints")
	}
}

// The log and Explain report what is held.
func TestHeldEndpointsAreExplained(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	state, err := New(klog.NewContext(t.Context(), log), holding.Options, holding.ClusterOptions)
	require.NoError(t, err)
	w := &world{t: t, state: state, got: newMirror()}
	w.set(aService("web", clusterIPs("10.0.0.1", "fd00::1")), aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2")))
	explain := func() *Explanation {
		e, known := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
		require.True(t, known)
		return e
	}
	assert.False(t, explain().Held)
	assert.Empty(t, lines)

	w.set(aSlice("web-1", ep("10.1.0.1", unready)))
	w.set(aSlice("web-1", ep("10.1.0.1", dead)))
	e := explain()
	assert.True(t, e.Held)
	assert.Equal(t, []string{"1 endpoint in slice web-1: the last usable endpoints are held"}, e.Ignored)
	assert.True(t, e.Ports[0].Held)
	assert.False(t, e.Ports[1].Held, "of the other family")
	assert.Contains(t, e.String(), "held: no slice has a usable endpoint, so the last ones stay")
	assert.Len(t, e.Ports[0].Endpoints, 2)
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0], "A Service has no usable endpoint any more; keeping its last ones")
	assert.Contains(t, lines[0], `"family"="IPv4"`)
	w.state.ForClass(Class{}).logHeld(w.state.services[e.Service], heldPort{}, false, true)
	require.Len(t, lines, 1, "a class does not repeat it")

	w.delete(aSlice("web-1"))
	assert.True(t, explain().Held)
	assert.Empty(t, explain().Ignored)
	w.set(aSlice("web-2", ep("10.1.0.3")))
	assert.False(t, explain().Held)
	require.Len(t, lines, 2)
	assert.Contains(t, lines[1], "A Service whose last endpoints were kept has usable ones again")
}

// A slice that is created again in the other family, while its endpoints are held, has endpoints in both.
func TestASliceThatComesBackInTheOtherFamilyIsHeld(t *testing.T) {
	opts := holding
	opts.AllEndpoints = true
	w := newWorldWith(t, opts, aService("web", clusterIPs("10.0.0.1", "fd00::1")), aSlice("web-1", ep("10.1.0.1")),
		aSlice("web-2", ep("10.1.0.2", unready)))
	w.delete(aSlice("web-1"))
	w.set(aSlice("web-2", ep("10.1.0.3", unready)))
	w.flush()
	assert.Equal(t, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 -"}, w.endpoints("web"))
	w.set(aSlice("web-1", ofType(discoveryv1.AddressTypeIPv6), ep("fd01::1", unready)))
	w.flush()
	assert.Equal(t, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 -", "[fd01::1]:8080 -"}, w.endpoints("web"))
	w.set(aSlice("web-2", ep("10.1.0.3")))
	w.flush()
	assert.Equal(t, []string{"10.1.0.3:8080 Cluster", "[fd01::1]:8080 -"}, w.endpoints("web"))
	assert.Empty(t, w.state.held)
}

// Slices that are added and deleted during an outage leave nothing behind, however long it lasts.
func TestSlicesThatComeAndGoMeanwhileAreForgotten(t *testing.T) {
	w := newWorldWith(t, holding, aService("web"), aSlice("web-1", ep("10.1.0.1")))
	w.delete(aSlice("web-1"))
	for i := range 10 {
		slice := aSlice(fmt.Sprint("other-", i), ep("10.1.0.2", unready))
		w.set(slice)
		w.delete(slice)
	}
	require.Len(t, w.state.held, 1)
	for _, hold := range w.state.held {
		assert.Empty(t, hold.now)
		assert.Len(t, hold.last, 1)
	}
	for _, svc := range w.state.services {
		assert.Len(t, svc.slices, 1)
	}
}

// A change that is held for minutes does not count as network programming that takes minutes.
func TestWhatWaitsHasNoTriggerTime(t *testing.T) {
	at := annotated(corev1.EndpointsLastChangeTriggerTime, "2999-01-02T03:04:05Z")
	w := newWorldWith(t, holding, aService("web"), aSlice("web-1", ep("10.1.0.1")))
	w.set(aSlice("web-1", ep("10.1.0.1", unready), at))
	assert.Empty(t, w.state.triggers)
	w.set(aSlice("web-1", ep("10.1.0.2"), at))
	assert.Len(t, w.flush().Triggers.IPv4, 1)
}

// holder processes events by the wording of S66: the slices that count for a port of a service in a family are its
// current ones or, if these have no usable endpoint for it and it has been served ever since, those of the last time
// when they had one.
type holder struct {
	opts   options
	plain  *world                                           // without the option
	slices map[string]*discoveryv1.EndpointSlice            // that exist
	counts map[portOf]map[string]*discoveryv1.EndpointSlice // by service, family and port
	held   map[portOf]bool
}

type portOf struct {
	model.ServiceName
	model.Family
	port     string
	protocol corev1.Protocol
}

func newHolder(t *testing.T, opts options) *holder {
	plain := opts
	plain.HoldEndpoints = nil
	return &holder{opts, newWorldWith(t, plain), map[string]*discoveryv1.EndpointSlice{},
		map[portOf]map[string]*discoveryv1.EndpointSlice{}, map[portOf]bool{}}
}

// ports returns the ports that may be held.
func (h *holder) ports() (all []portOf) {
	for _, name := range h.opts.HoldEndpoints {
		if svc := h.plain.state.services[name]; svc != nil && svc.intake != nil {
			for _, f := range h.plain.state.families {
				for _, p := range svc.intake.fields.Ports {
					if svc.intake.families.Has(f) {
						all = append(all, portOf{name, f, p.Name, corev1.Protocol(p.Protocol.String())})
					}
				}
			}
		}
	}
	return all
}

func (h *holder) apply(e event) {
	h.plain.apply(e.obj, e.deleted)
	if slice, ok := e.obj.(*discoveryv1.EndpointSlice); ok {
		slice, ignored := h.plain.state.admitSlice(slice)
		if delete(h.slices, e.key()); !e.deleted && ignored == "" && h.plain.state.whyIgnored(slice) == "" {
			h.slices[e.key()] = slice
		}
	}
	counts, held := map[portOf]map[string]*discoveryv1.EndpointSlice{}, map[portOf]bool{}
	for _, p := range h.ports() {
		counts[p] = map[string]*discoveryv1.EndpointSlice{}
		for key, slice := range h.slices {
			if p.of(slice) && len(p.in(slice)) > 0 {
				counts[p][key] = slice
			}
		}
		if !p.usable(counts[p]) && p.usable(h.counts[p]) {
			counts[p], held[p] = h.counts[p], true
		}
	}
	h.counts, h.held = counts, held
}

// of reports whether a slice belongs to the service of the port.
func (p portOf) of(slice *discoveryv1.EndpointSlice) bool {
	return slice.Namespace == p.Namespace && slice.Labels[discoveryv1.LabelServiceName] == p.Name
}

// in returns the entries that a slice has for the port.
func (p portOf) in(slice *discoveryv1.EndpointSlice) (all []discoveryv1.EndpointPort) {
	for _, port := range slice.Ports {
		if string(slice.AddressType) == p.Family.String() && port.Name != nil && *port.Name == p.port &&
			port.Port != nil && *port.Port > 0 && *port.Port < 1<<16 &&
			cmp.Or(ptr.Deref(port.Protocol, ""), corev1.ProtocolTCP) == p.protocol {
			all = append(all, port)
		}
	}
	return all
}

// usable reports whether slices that have the port have a usable endpoint.
func (p portOf) usable(slices map[string]*discoveryv1.EndpointSlice) bool {
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			addr, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || model.FamilyOf(addr) != p.Family {
				continue
			}
			c := e.Conditions
			if ptr.Deref(c.Ready, true) || ptr.Deref(c.Serving, true) && ptr.Deref(c.Terminating, false) {
				return true
			}
		}
	}
	return false
}

// objects returns events that result in the same state without the option, and without an AdmitSlice.
func (h *holder) objects(all history) (out history) {
	for _, e := range all.final() {
		if _, isSlice := e.obj.(*discoveryv1.EndpointSlice); !isSlice {
			out = append(out, e)
		}
	}
	for _, slice := range h.slices {
		own := slice.DeepCopy()
		own.Ports = slices.DeleteFunc(own.Ports, func(port discoveryv1.EndpointPort) bool {
			only := &discoveryv1.EndpointSlice{AddressType: own.AddressType, Ports: []discoveryv1.EndpointPort{port}}
			return slices.ContainsFunc(slices.Collect(maps.Keys(h.held)),
				func(p portOf) bool { return p.of(slice) && len(p.in(only)) > 0 })
		})
		if len(own.Ports) > 0 || len(slice.Ports) == 0 {
			out = append(out, event{obj: own})
		}
	}
	// What several ports keep of one slice is one slice.
	kept := map[string]*discoveryv1.EndpointSlice{}
	for p := range h.held {
		for _, slice := range h.counts[p] {
			own := slice.DeepCopy()
			own.Ports = nil
			version := fmt.Sprint(slice.Namespace, slice.Labels, *intakeSlice(klog.Logger{}, h.opts, slice, nil))
			if kept[version] == nil {
				kept[version] = own
				own.Name += fmt.Sprint("-held-", len(kept)) // the slice may be another service's by now
			}
			kept[version].Ports = append(kept[version].Ports, p.in(slice)...)
		}
	}
	for _, slice := range kept {
		out = append(out, event{obj: slice})
	}
	return out
}

func TestHeldEndpointsFollowTheRule(t *testing.T) {
	held := 0
	for seed := range uint64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := testkit.Seeded(seed)
			opts := randomOptions(d)
			opts.HoldEndpoints = []model.ServiceName{{Namespace: "ns", Name: "web"}, {Namespace: "ns2", Name: "a"}}
			var h history
			reference := newHolder(t, opts)
			w := newWorldWith(t, opts)
			w.state.indexAbove = testkit.Pick(d, 0, 2, indexAbove)
			for range 10 + d.IntN(40) {
				e := randomEvent(d)
				h = append(h, e)
				reference.apply(e)
				if w.apply(e.obj, e.deleted); testkit.OneIn(d, 3) {
					w.flush()
				}
			}
			w.flush()
			plain := opts
			plain.HoldEndpoints, plain.AdmitSlice = nil, nil
			want := reference.objects(h).play(t, plain, indexAbove, func() bool { return false })
			require.Equal(t, want.got.String(), w.got.String())
			require.Equal(t, want.state.NoLocalEndpoints(), w.state.NoLocalEndpoints())
			require.Empty(t, checkExplanations(w.state, w.got))
			held += len(w.state.held)
			for _, e := range h {
				w.delete(e.obj)
			}
			w.flush()
			require.Empty(t, w.got.endpoints)
			requireNothingKept(t, w.state)
		})
	}
	assert.Greater(t, held, 30, "times that endpoints are held at the end")
}
