package kubeproxy

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// newFailures returns failures, their log, and options that allow a hundred Syncs a second.
func newFailures() (*failures, *[]string, Options) {
	lines := &[]string{}
	opts, _ := Options{MinInterval: -1}.withDefaults()
	return &failures{log: funcr.New(func(_, args string) { *lines = append(*lines, args) }, funcr.Options{})}, lines, opts
}

func refusedPorts(n int) error {
	var errs []error
	for i := range n {
		errs = append(errs, &sink.PortError{Port: model.PortName{Service: model.ServiceName{Namespace: "shop",
			Name: fmt.Sprint("service-", i)}, Port: "http", Protocol: model.TCP}, Family: model.IPv4,
			Err: errors.New("no space left on device")})
	}
	return errors.Join(errs...)
}

func TestAFailureThatStaysCostsNothing(t *testing.T) {
	f, lines, opts := newFailures()
	end := time.Now()
	f.note(refusedPorts(1000), false, end, opts)
	assert.Len(t, *lines, 1000)
	again := refusedPorts(1000)
	f.note(again, false, end, opts)
	assert.Zero(t, testing.AllocsPerRun(100, func() { f.note(again, false, end, opts) }))
	assert.Len(t, *lines, 1000, "each is logged once")
	assert.Equal(t, 1000, f.counts[model.IPv4])
	assert.Zero(t, f.counts[model.IPv6])
	assert.False(t, f.retryAt().IsZero())

	f.note(again, true, end, opts)
	assert.Equal(t, 2, f.ports.attempts)
	f.note(nil, true, end, opts)
	assert.Len(t, *lines, 2000)
	assert.Zero(t, f.counts[model.IPv4])
	assert.True(t, f.retryAt().IsZero())
}

// If thousands of ports of a service fail, some are named and the others counted.
func TestManyServicePortsOfAServiceAreLoggedTogether(t *testing.T) {
	f, lines, opts := newFailures()
	named := 0
	f.onPortError = func(*sink.PortError) { named++ }
	var errs []error
	for i := range 8085 {
		errs = append(errs, &sink.PortError{Port: model.PortName{Service: model.ServiceName{Namespace: "shop", Name: "web"},
			Port: fmt.Sprint("p", i), Protocol: model.TCP}, Family: model.IPv4, Err: errors.New("too many")})
	}
	f.note(errors.Join(errs...), false, time.Now(), opts)
	assert.Len(t, *lines, 9)
	assert.Contains(t, (*lines)[8], `"service"="shop/web" "family"="IPv4" "servicePorts"=8077`)
	assert.Equal(t, 8, named)
	assert.Equal(t, 8085, f.counts[model.IPv4])
	f.note(nil, false, time.Now(), opts)
	f.note(nil, true, time.Now(), opts)
	assert.Len(t, *lines, 18)
}

// A hundred Syncs a second are not a hundred lines.
func TestFailuresBetweenRetriesAreNotLoggedEachTime(t *testing.T) {
	for name, failure := range map[string]func(n int) error{
		"each says something else": func(n int) error { return fmt.Errorf("error %d", n) },
		"every second Sync": func(n int) error {
			if n%2 == 1 {
				return nil
			}
			return errors.New("busy")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, lines, opts := newFailures()
			now := time.Now()
			const seconds = 10
			retries := 0
			for n := range 100 * seconds {
				attempt := !f.retryAt().IsZero() && !f.retryAt().After(now)
				if attempt {
					retries++
				}
				f.note(failure(n), attempt, now, opts)
				now = now.Add(10 * time.Millisecond)
			}
			assert.NotEmpty(t, *lines)
			assert.LessOrEqual(t, len(*lines), 1+2*retries+seconds)
			assert.LessOrEqual(t, len(*lines), 10*seconds, "the first retry comes after 100 ms")
		})
	}
}

// While thousands of service ports keep failing, another failure does not format their errors again.
func TestOneMoreFailureDoesNotCostAllTexts(t *testing.T) {
	f, lines, opts := newFailures()
	all := refusedPorts(1001).(interface{ Unwrap() []error }).Unwrap()
	some, more := errors.Join(all[:1000]...), errors.Join(all...)
	f.note(some, false, time.Now(), opts)
	before := len(*lines)
	f.note(more, false, time.Now(), opts)
	assert.Len(t, *lines, before+1)
	i := 0
	allocs := testing.AllocsPerRun(10, func() {
		i++
		f.note([]error{some, more}[i%2], false, time.Now(), opts)
	})
	assert.Less(t, allocs, 200.)
}
