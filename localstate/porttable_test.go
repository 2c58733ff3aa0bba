package localstate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"unique"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// portsInSlices returns a service, and a slice for each part of its ports. The slices have the same endpoints.
func portsInSlices(ports, perSlice, endpoints int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	service := benchService(1)
	service.Spec.Ports = nil
	var list []*discoveryv1.EndpointSlice
	for p := range ports {
		name := fmt.Sprintf("port-%d", p)
		service.Spec.Ports = append(service.Spec.Ports,
			corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: int32(1000 + p)})
		if p%perSlice == 0 {
			slice := benchSlice(1, p/perSlice, 0, 0)
			slice.Ports = nil
			for e := range endpoints {
				slice.Endpoints = append(slice.Endpoints, hugeEndpoint(e))
			}
			list = append(list, slice)
		}
		last := list[len(list)-1]
		last.Ports = append(last.Ports, discoveryv1.EndpointPort{Name: &name, Port: ptr.To(int32(8000 + p))})
	}
	return service, list
}

// randomEntries returns entries of one service's slices, each with some of a few ports.
func randomEntries(d testkit.Random) *entries {
	var e entries
	for s := range d.IntN(16) {
		slice := &sliceIntake{name: fmt.Sprintf("%02d", s), family: model.IPv4}
		if s > 0 && testkit.OneIn(d, 3) {
			slice.ports = e.slices[s-1].ports
		} else {
			for range d.IntN(4) {
				slice.ports = append(slice.ports, slicePort{
					name:     testkit.Pick(d, "a", "b", "c", "d", "e", "f"),
					protocol: testkit.Pick(d, model.TCP, model.UDP), number: uint16(1 + d.IntN(3)),
				})
			}
			slices.SortStableFunc(slice.ports, slicePort.compare)
		}
		for range d.IntN(4) {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(d.IntN(5))})
			flags := testkit.Pick(d, 0, flagReady, flagReady, flagReady|flagTerminating)
			slice.add(addr, flags, unique.Make(place{}))
		}
		e.add(slice, 0, slice.len())
	}
	e.sort()
	return &e
}

// An endpoint counts for a health check if it is ready and wins a target of any port (S17, S38).
func TestEndpointsOfAnyPortAreHealthy(t *testing.T) {
	type winner struct {
		slice string
		at    int32
	}
	for seed := range uint64(2000) {
		e := randomEntries(testkit.Seeded(seed))
		for same := range e.byAddr() {
			want, got := map[winner]bool{}, map[winner]bool{}
			for _, x := range same {
				for _, p := range e.slices[x.slice].ports {
					e.forPort(p.name, p.protocol)
					for _, c := range e.candidates(nil, same) {
						if !c.loses && c.flags.has(flagReady) {
							want[winner{c.slice.name, c.at}] = true
						}
					}
				}
			}
			for c := range e.healthy(same) {
				got[winner{c.slice.name, c.at}] = true
			}
			assert.Equal(t, want, got, "seed %d", seed)
		}
	}
}

// Each slice contributes its endpoints to a port's candidates, whatever ports the others have.
func TestCandidatesAreThoseOfTheSlicesWithThePort(t *testing.T) {
	type found struct {
		addr  string
		slice string
		at    int32
		port  slicePortNumber
	}
	for seed := range uint64(500) {
		e := randomEntries(testkit.Seeded(seed))
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "other"} {
			for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
				var want, got []found
				for _, x := range e.list {
					slice := e.slices[x.slice]
					for at, p := range slice.ports {
						if p.name == name && p.protocol == protocol {
							want = append(want, found{x.addr.String(), slice.name, x.at,
								slicePortNumber{p.number, int32(at)}})
						}
					}
				}
				for _, x := range e.forPort(name, protocol) {
					for _, number := range e.ports.of(x) {
						got = append(got, found{x.addr.String(), e.slices[x.slice].name, x.at, number})
					}
				}
				assert.Equal(t, want, got, "seed %d, port %s/%v", seed, name, protocol)
			}
		}
	}
}

// The cost of a port depends on the slices that have it, not on all slices of the service.
func TestAPortLooksAtTheSlicesThatHaveIt(t *testing.T) {
	service, list := portsInSlices(200, 10, 3)
	w := newWorld(t, service)
	for _, slice := range list {
		w.set(slice)
	}
	var e entries
	e.addAll(w.state.services[model.ServiceName{Namespace: service.Namespace, Name: service.Name}], model.IPv4)
	assert.Equal(t, 20*3, len(e.list))
	for p := range 200 {
		assert.Equal(t, 3, len(e.forPort(fmt.Sprintf("port-%d", p), model.TCP)))
	}
	assert.Empty(t, e.forPort("other", model.TCP))
	w.flush()
	assert.Equal(t, 200*3, len(w.got.endpoints))
}

// BenchmarkPortsInManySlices measures a change of an endpoint of a service whose ports are in slices of 100 each.
func BenchmarkPortsInManySlices(b *testing.B) {
	for _, ports := range []int{1000, 8000} {
		b.Run(fmt.Sprint(ports), func(b *testing.B) {
			service, list := portsInSlices(ports, 100, 3)
			state := clusterSize{}.load(b, []*corev1.Service{service}, list)
			r := &null{}
			state.Flush(r)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				list[0].Endpoints[0].Conditions.Ready = ptr.To(n%2 == 1)
				state.setEndpointSlice(list[0])
				state.Flush(r)
			}
		})
	}
}
