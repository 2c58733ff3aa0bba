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
	plain := errors.New("broken")
	v4 := &sink.FamilyError{Family: model.IPv4, Err: plain}
	v6 := &sink.FamilyError{Family: model.IPv6, Err: plain}
	port := &sink.PortError{Port: model.PortName{Service: name("a"), Port: "http", Protocol: model.TCP},
		Family: model.IPv4, Err: plain}
	for _, c := range []struct {
		name   string
		err    error
		v4, v6 bool
	}{
		{"no error", nil, false, false},
		{"an error that names no family concerns both", plain, true, true},
		{"one family", v4, true, false},
		{"the other", v6, false, true},
		{"one family, wrapped", fmt.Errorf("table: %w", v4), true, false},
		{"an invalid family concerns both", &sink.FamilyError{Err: plain}, true, true},
		{"joined: one family twice", errors.Join(v6, v6), false, true},
		{"joined: each family", errors.Join(v4, v6), true, true},
		{"joined with an error that names none", errors.Join(v4, plain), true, true},
		{"an error of a service port concerns no family", port, false, false},
		{"service ports, joined and wrapped", fmt.Errorf("table: %w", errors.Join(port, port)), false, false},
		{"a service port and a family", errors.Join(port, v6), false, true},
		{"a service port and an error that names nothing", errors.Join(port, plain), true, true},
		{"a family in which service ports failed, and nothing else",
			&sink.FamilyError{Family: model.IPv6, Err: errors.Join(port, port)}, false, false},
		{"a family in which a service port failed, among other things",
			&sink.FamilyError{Family: model.IPv6, Err: errors.Join(port, plain)}, false, true},
		{"joined, wrapped and joined", errors.Join(fmt.Errorf("sink: %w", errors.Join(v4))), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v4, v6 := sink.FailedFamilies(c.err)
			assert.Equal(t, [2]bool{c.v4, c.v6}, [2]bool{v4, v6})
		})
	}
	assert.EqualError(t, v4, "IPv4: broken")
	assert.ErrorIs(t, v4, plain)
}
