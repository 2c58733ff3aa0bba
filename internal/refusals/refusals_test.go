package refusals_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/internal/refusals"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func name(service string) model.ServiceName {
	return model.ServiceName{Namespace: "default", Name: service}
}

func refused(service, port string, f model.Family) *sink.PortError {
	return &sink.PortError{Port: model.PortName{Service: name(service), Port: port, Protocol: model.TCP}, Family: f,
		Err: errors.New("refused")}
}

func TestWhatIsRefusedFollowsTheErrors(t *testing.T) {
	p := refusals.Ports{Counts: func(e *sink.PortError) bool { return !e.ServesExternal }}
	has := func(service, port string, f model.Family) bool {
		return p.Of(name(service)).Has(&model.ServicePort{Name: port, Protocol: model.TCP}, f)
	}
	partly := refused("c", "http", model.IPv4)
	partly.ServesExternal = true
	first := errors.Join(refused("a", "http", model.IPv4), refused("b", "http", model.IPv4),
		refused("a", "http", model.IPv6), partly)
	assert.ElementsMatch(t, []model.ServiceName{name("a"), name("b")}, p.Note(first))
	assert.True(t, has("a", "http", model.IPv4))
	assert.True(t, has("a", "http", model.IPv6))
	assert.True(t, has("b", "http", model.IPv4))
	assert.False(t, has("b", "http", model.IPv6))
	assert.False(t, has("a", "https", model.IPv4))
	assert.False(t, has("c", "http", model.IPv4), "it does not count")

	assert.Empty(t, p.Note(first), "the same error")
	assert.ElementsMatch(t, []model.ServiceName{name("a")}, p.Note(errors.Join(refused("b", "http", model.IPv4),
		&sink.FamilyError{Family: model.IPv6, Err: errors.New("not applied")})))
	assert.False(t, has("a", "http", model.IPv4))
	assert.True(t, has("a", "http", model.IPv6), "its family is as it was")
	assert.ElementsMatch(t, []model.ServiceName{name("a"), name("b")}, p.Note(nil))
	assert.False(t, has("a", "http", model.IPv6))
}

// A Sync that fails like the one before allocates nothing, however many ports are refused.
func TestTheSameErrorCostsNothing(t *testing.T) {
	var errs []error
	for n := range 10_000 {
		errs = append(errs, refused("huge", fmt.Sprint(n), model.IPv4))
	}
	var p refusals.Ports
	err := errors.Join(errs...)
	assert.Len(t, p.Note(err), 1)
	assert.Zero(t, testing.AllocsPerRun(10, func() { p.Note(err) }))
}

func BenchmarkAnotherErrorOfTenThousandPorts(b *testing.B) {
	var errs [2]error
	for i := range errs {
		var of []error
		for n := range 10_000 + i {
			of = append(of, refused("huge", fmt.Sprint(n), model.IPv4))
		}
		errs[i] = errors.Join(of...)
	}
	var p refusals.Ports
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		p.Note(errs[n%2])
	}
}
