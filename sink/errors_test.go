package sink_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestPortErrorsAreFoundInTheirOrder(t *testing.T) {
	refused := errors.New("refused")
	portError := func(port string) *sink.PortError {
		name := model.PortName{Service: name("a"), Port: port, Protocol: model.SCTP}
		return &sink.PortError{Port: name, Family: model.IPv6, Err: refused}
	}
	one, two, three := portError("one"), portError("two"), portError("three")
	assert.Empty(t, sink.PortErrors(nil))
	assert.Empty(t, sink.PortErrors(refused))
	all := errors.Join(fmt.Errorf("wrapped: %w", one),
		&sink.FamilyError{Family: model.IPv6, Err: errors.Join(two, refused)}, errors.Join(three))
	assert.Equal(t, []*sink.PortError{one, two, three}, sink.PortErrors(all))
	assert.ErrorIs(t, one, refused)
	assert.EqualError(t, one, "service port ns/a:one/SCTP (IPv6): refused")
}

func TestAPermanentErrorOfAServicePortIsNotPermanent(t *testing.T) {
	permanent := &sink.PermanentError{Err: errors.New("no such match")}
	port := &sink.PortError{Err: permanent}
	v6 := &sink.FamilyError{Family: model.IPv6, Err: permanent}
	assert.Nil(t, sink.Permanent(nil))
	assert.Nil(t, sink.Permanent(errors.New("broken")))
	assert.Nil(t, sink.Permanent(port))
	assert.Same(t, permanent, sink.Permanent(errors.Join(port, fmt.Errorf("wrapped: %w", v6))))
}

// A sink may leave the cause out. Logging such an error must not panic.
func TestErrorsWithoutACauseHaveAText(t *testing.T) {
	family := &sink.FamilyError{Family: model.IPv6}
	port := &sink.PortError{Port: model.PortName{Service: name("a"), Port: "one", Protocol: model.TCP},
		Family: model.IPv4}
	permanent := &sink.PermanentError{}
	assert.EqualError(t, family, "IPv6: the sink names no cause")
	assert.EqualError(t, port, "service port ns/a:one/TCP (IPv4): the sink names no cause")
	assert.EqualError(t, permanent, "the sink names no cause")

	all := errors.Join(family, port)
	assert.Equal(t, model.IPv6.Set(), sink.FailedFamilies(all))
	assert.Equal(t, []*sink.PortError{port}, sink.PortErrors(all))
	assert.Same(t, permanent, sink.Permanent(errors.Join(all, permanent)))
}
