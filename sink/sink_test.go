package sink_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestFailedFamilies(t *testing.T) {
	only4, only6, both := model.IPv4.Set(), model.IPv6.Set(), model.BothFamilies
	plain := errors.New("broken")
	v4 := &sink.FamilyError{Family: model.IPv4, Err: plain}
	v6 := &sink.FamilyError{Family: model.IPv6, Err: plain}
	port := &sink.PortError{Port: model.PortName{Service: name("a"), Port: "http", Protocol: model.TCP},
		Family: model.IPv4, Err: plain}
	for _, c := range []struct {
		name string
		err  error
		want model.FamilySet
	}{
		{"no error", nil, 0},
		{"an error that names no family concerns both", plain, both},
		{"one family", v4, only4},
		{"the other", v6, only6},
		{"one family, wrapped", fmt.Errorf("table: %w", v4), only4},
		{"an invalid family concerns both", &sink.FamilyError{Err: plain}, both},
		{"joined: one family twice", errors.Join(v6, v6), only6},
		{"joined: each family", errors.Join(v4, v6), both},
		{"joined with an error that names none", errors.Join(v4, plain), both},
		{"an error of a service port concerns no family", port, 0},
		{"service ports, joined and wrapped", fmt.Errorf("table: %w", errors.Join(port, port)), 0},
		{"a service port and a family", errors.Join(port, v6), only6},
		{"a service port and an error that names nothing", errors.Join(port, plain), both},
		{"a family in which service ports failed, and nothing else",
			&sink.FamilyError{Family: model.IPv6, Err: errors.Join(port, port)}, 0},
		{"a family in which a service port failed, among other things",
			&sink.FamilyError{Family: model.IPv6, Err: errors.Join(port, plain)}, only6},
		{"joined, wrapped and joined", errors.Join(fmt.Errorf("sink: %w", errors.Join(v4))), only4},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, sink.FailedFamilies(c.err))
		})
	}
	assert.EqualError(t, v4, "IPv4: broken")
	assert.ErrorIs(t, v4, plain)
}
