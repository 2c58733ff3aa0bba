package conformance

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestShrinkKeepsWhatTheFailureNeedsAndNothingElse(t *testing.T) {
	// The script fails if svc-a had a pod on local-1 in some wave, and svc-b is Local in the last one.
	fails := func(sc script) bool {
		had := false
		for _, st := range sc.steps {
			for _, s := range st.services {
				for _, e := range s.endpoints {
					had = had || s.name == "svc-a" && e.at == localPod1
				}
			}
		}
		for _, s := range sc.steps[len(sc.steps)-1].services {
			if s.name == "svc-b" && s.externalLocal && had {
				return true
			}
		}
		return false
	}
	ports := []servicePort{{protocol: model.TCP}, {protocol: model.UDP}, {protocol: model.SCTP}}
	a := external(service{name: "svc-a", slot: 1, ports: ports, endpoints: at(localPod1, localPod2)})
	b := external(service{name: "svc-b", slot: 2, ports: ports, endpoints: at(remotePod1)})
	local := b
	local.externalLocal = true
	other := external(service{name: "svc-c", slot: 3, ports: ports, endpoints: at(remotePod2)})
	sc := script{steps: []scriptStep{
		{services: []service{other}},
		{services: []service{a, b, other}, event: restarted},
		{services: []service{b, other}},
		{services: []service{other, local}, event: cancelled},
	}}
	require.True(t, fails(sc))
	small := shrink(sc, fails, 1000)
	require.True(t, fails(small))
	onePort := ports[:1]
	assert.Equal(t, []scriptStep{
		{services: []service{{name: "svc-a", slot: 1, ports: onePort, endpoints: at(localPod1)}}},
		{services: []service{{name: "svc-b", slot: 2, ports: onePort, endpoints: []endpoint{}, externalLocal: true}}},
	}, small.steps)
}

func TestShrinkTriesAgainWhatItCouldNotLeaveOutAtFirst(t *testing.T) {
	services := func(names ...string) (list []service) {
		for i, name := range names {
			list = append(list, service{name: name, slot: i + 1, ports: []servicePort{{protocol: model.TCP}}})
		}
		return list
	}
	// svc-a is needed as long as svc-b exists.
	fails := func(sc script) bool {
		names := sc.serviceNames()
		return slices.Contains(names, "svc-c") && (slices.Contains(names, "svc-a") || !slices.Contains(names, "svc-b"))
	}
	small := shrink(script{steps: []scriptStep{{services: services("svc-a", "svc-b", "svc-c")}}}, fails, 100)
	assert.Equal(t, []string{"svc-c"}, small.serviceNames())
}

func TestShrinkAsksNoMoreOftenThanItMay(t *testing.T) {
	g := newGenerator(1, Factory{})
	var sc script
	var services []service
	for range episodeLength {
		st := g.next(services)
		services = st.services
		sc.steps = append(sc.steps, st)
	}
	for _, tries := range []int{0, 1, 7} {
		asked := 0
		shrink(sc, func(script) bool { asked++; return asked%2 == 0 }, tries)
		assert.Equal(t, tries, asked)
	}
}
