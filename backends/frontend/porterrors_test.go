package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestEveryServicePortHasOneErrorWhateverTheOrder(t *testing.T) {
	one, two := errors.New("one"), errors.New("two")
	refused := map[string][]error{"a": {two, one}}
	for i := range 25 {
		refused["many"] = append(refused["many"], fmt.Errorf("address %02d", 24-i))
	}
	table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv6},
		Apply: func(_ context.Context, c *frontend.Changes) error {
			for p := range c.Ports() {
				for _, err := range refused[p.Name().Port] {
					p.Refuse(p.After, err)
				}
			}
			return nil
		}})
	require.NoError(t, err)
	s := fm.Service("default/web").ClusterIP("fd00:96::1").Port("many", 1).Port("b", 2).Port("a", 3).Build()
	table.SetService(s)
	err = table.Sync(t.Context())
	found := sink.PortErrors(err)
	require.Len(t, found, 2)
	require.Equal(t, &sink.PortError{Port: s.PortName(s.Ports[2]), Family: model.IPv6, Err: errors.Join(one, two)},
		found[0])
	require.Equal(t, s.PortName(s.Ports[0]), found[1].Port)
	require.ErrorContains(t, found[1], "address 09\nand 15 more errors")
	require.NotContains(t, found[1].Error(), "address 10")
	require.Zero(t, sink.FailedFamilies(err))
}

// If one port of a service with many refused ports is added or removed, the errors of the others stay the same
// pointers.
func TestErrorsOfOtherPortsStayTheSame(t *testing.T) {
	refused := map[string]bool{}
	table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4},
		Limits: frontend.Limits{Service: frontend.Budget{Destinations: 1}},
		Apply: func(_ context.Context, c *frontend.Changes) error {
			for p := range c.Ports() {
				if refused[p.Name().Port] {
					p.Refuse(p.After, errors.New("refused"))
				}
			}
			return nil
		}})
	require.NoError(t, err)
	b := fm.Service("default/web").ClusterIP("10.96.0.1")
	for i := range 100 {
		b.Port(fmt.Sprintf("p%02d", i), uint16(i+1))
		refused[fmt.Sprintf("p%02d", i)] = i%2 == 0
	}
	s := b.Build()
	table.SetService(s)
	for i := 1; i < 100; i += 2 { // the others exceed a limit
		for n := range 2 {
			table.SetEndpoint(fm.Endpoint(fmt.Sprintf("default/web:p%02d/TCP", i), fmt.Sprintf("10.1.0.%d:80", n+1)).Build())
		}
	}
	first := sink.PortErrors(table.Sync(t.Context()))
	require.Len(t, first, 100)
	for port, n := range map[int]int{7: 99, 8: 99} {
		refused["p08"] = port != 8
		if port == 7 {
			table.DeleteEndpoint(fm.Endpoint("default/web:p07/TCP", "10.1.0.1:80").Build().Key())
		} else {
			table.SetEndpoint(fm.Endpoint("default/web:p08/TCP", "10.1.0.9:80").Build())
		}
		next := sink.PortErrors(table.Sync(t.Context()))
		require.Len(t, next, n)
		for _, e := range next {
			require.True(t, slices.Contains(first, e), "%v", e)
		}
		refused["p08"] = true
		if port == 7 {
			table.SetEndpoint(fm.Endpoint("default/web:p07/TCP", "10.1.0.1:80").Build())
		} else {
			table.DeleteEndpoint(fm.Endpoint("default/web:p08/TCP", "10.1.0.9:80").Build().Key())
		}
		first = sink.PortErrors(table.Sync(t.Context()))
		require.Len(t, first, 100)
	}
}
