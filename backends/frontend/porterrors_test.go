package frontend_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestEveryServicePortHasOneErrorWhateverTheOrder(t *testing.T) {
	name := func(port string) model.PortName {
		return model.PortName{Service: model.ServiceName{Namespace: "default", Name: "web"}, Port: port,
			Protocol: model.TCP}
	}
	require.NoError(t, frontend.PortErrors(model.IPv4, nil))

	one, two := errors.New("one"), errors.New("two")
	var many []error
	for i := range 25 {
		many = append(many, fmt.Errorf("address %02d", i))
	}
	err := frontend.PortErrors(model.IPv6, map[model.PortName][]error{
		name("many"): many, name("a"): {two, one}})
	found := sink.PortErrors(err)
	require.Len(t, found, 2)
	require.Equal(t, &sink.PortError{Port: name("a"), Family: model.IPv6, Err: errors.Join(one, two)}, found[0])
	require.Equal(t, name("many"), found[1].Port)
	require.ErrorContains(t, found[1], "address 09\nand 15 more errors")
	require.NotContains(t, found[1].Error(), "address 10")
	v4, v6 := sink.FailedFamilies(err)
	require.False(t, v4 || v6)
}
