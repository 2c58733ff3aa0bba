package frontend_test

import (
	"context"
	"errors"
	"fmt"
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
