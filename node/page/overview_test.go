package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// The state reports a source that is silent, a state from a file, and one that may be older than the one before.
func TestStateSaysWhatIsWrongWithTheSource(t *testing.T) {
	h := health.New(0)
	r := newRig(t, nil, Options{Health: h})
	r.apply()
	assert.Nil(t, get[pageState](r, "/api/state").Source)
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	h.SetDisconnected(at)
	h.SetRestored(at.Add(-time.Hour))
	h.SetWentBack(at.Add(time.Minute))
	assert.Equal(t, &sourceState{at, at.Add(-time.Hour), at.Add(time.Minute)}, get[pageState](r, "/api/state").Source)
	h.SetDisconnected(time.Time{})
	h.SetRestored(time.Time{})
	assert.Equal(t, &sourceState{WentBack: at.Add(time.Minute)}, get[pageState](r, "/api/state").Source)
}

func TestTheLastSyncsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBackend{}
		r := newRig(t, b, Options{})
		for i := range 70 {
			for n := range i % 3 {
				r.sink.SetService(service(fmt.Sprintf("s%d-%d", i, n), i, false))
			}
			b.takes, b.err = time.Duration(i)*time.Millisecond, nil
			switch i {
			case 68:
				b.err = errors.New("no memory")
			case 69:
				s := service("s1-0", 1, false)
				b.err = &sink.PortError{Port: s.PortName(s.Ports[0]), Family: model.IPv4, Err: errors.New("no room")}
			}
			_ = r.sink.Sync(t.Context())
		}
		got := get[pageState](r, "/api/state").Syncs
		require.Len(t, got, maxSyncs)
		assert.EqualValues(t, 11, got[0].Number)
		last := got[maxSyncs-3:]
		for i := range last {
			last[i].At = time.Time{}
		}
		assert.Equal(t, []syncPoint{{Number: 68, Micros: 67_000, Services: 1},
			{Number: 69, Micros: 68_000, Services: 2, Failed: true}, {Number: 70, Micros: 69_000}}, last, "a Sync that "+
			"fails for single ports has not failed")

		// A message has only those that are new.
		before := r.view()
		b.err = nil
		r.apply()
		now := r.view()
		assert.Len(t, r.message(&before, &now).Syncs, 1)
	})
}

// slowBackend is a backend whose Sync takes some time.
type slowBackend struct {
	sink.TeeSink
	backend
	takes time.Duration
}

func (b *slowBackend) SetService(*model.Service)        {}
func (b *slowBackend) DeleteService(model.ServiceName)  {}
func (b *slowBackend) SetEndpoint(*model.Endpoint)      {}
func (b *slowBackend) DeleteEndpoint(model.EndpointKey) {}

func (b *slowBackend) Sync(ctx context.Context) error {
	time.Sleep(b.takes) // in the test's own time
	return b.backend.Sync(ctx)
}

func TestTheBusiestServicesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, Options{})
		for i := range 3 {
			r.sink.SetService(service(fmt.Sprintf("s%d", i), i, false))
		}
		r.apply()
		assert.Empty(t, get[pageState](r, "/api/state").Busiest, "what was listed has not changed")
		change := func(name string, times int) {
			s := service(name, 1, false)
			for range times {
				r.sink.SetEndpoint(endpoint(s, "10.244.1.5:8080", cluster))
				r.apply()
				r.sink.DeleteEndpoint(endpoint(s, "10.244.1.5:8080", cluster).Key())
				r.apply()
			}
		}
		change("s0", 1)
		change("s1", 2)
		busiest := func() (list []string) {
			for _, b := range get[pageState](r, "/api/state").Busiest {
				list = append(list, fmt.Sprint(b.Service.Name, " ", b.Changes))
			}
			return list
		}
		assert.Equal(t, []string{"s1 4", "s0 2"}, busiest())
		time.Sleep(busyPeriod)
		change("s0", 2)
		assert.Equal(t, []string{"s0 6", "s1 4"}, busiest(), "two periods count")
		time.Sleep(busyPeriod)
		change("s2", 1)
		assert.Equal(t, []string{"s0 4", "s2 2"}, busiest(), "s1 has been quiet")
		time.Sleep(2 * busyPeriod)
		change("s2", 1)
		assert.Equal(t, []string{"s2 2"}, busiest())
	})
}

// However many services change, the busiest one is found with little memory.
func TestTheCountOfChangesIsBounded(t *testing.T) {
	var b busy
	b.rotate(time.Now())
	name := func(i int) model.ServiceName { return model.ServiceName{Namespace: "shop", Name: fmt.Sprint(i)} }
	for i := range 100_000 {
		b.add(name(1 + i%20_000))
		if i%10 == 0 {
			b.add(name(0))
		}
		require.LessOrEqual(t, len(b.now), maxBusy)
	}
	assert.Equal(t, name(0), b.busiest()[0].Service)
	assert.LessOrEqual(t, len(b.busiest()), maxBusiest)
}

// An answer about a packet goes by what is applied, and says what is not.
func TestAPacketIsTracedThroughWhatIsApplied(t *testing.T) {
	b := &backend{}
	r := newRig(t, b, Options{})
	web := service("web", 1, false)
	r.sink.SetService(web)
	r.sink.SetEndpoint(endpoint(web, "10.244.1.5:8080", cluster))
	b.err = &sink.FamilyError{Family: model.IPv4, Err: errors.New("no memory")}
	require.Error(t, r.sink.Sync(t.Context()))
	const question = "node 192.0.2.1 -> 10.96.0.1:80"
	w := r.request("/api/flow?q=" + "node+192.0.2.1+-%3E+10.96.0.1:80")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "nothing has been applied yet in IPv4: IPv4: no memory\n", w.Body.String())
	other := get[flowAnswer](r, "/api/flow", "q", "node fd00::1 -> [fd00::2]:80")
	assert.Equal(t, oracle.NotOurs, other.Outcome.Verdict,
		"the other family is applied")

	ask := func() (endpoints, notes []string, at time.Time) {
		got := get[flowAnswer](r, "/api/flow", "q", question)
		for _, e := range got.Outcome.Endpoints {
			endpoints = append(endpoints, e.Endpoint.String())
		}
		return endpoints, got.Notes, got.AppliedAt
	}
	b.err = nil
	r.apply()
	endpoints, notes, applied := ask()
	assert.Equal(t, []string{"10.244.1.5:8080"}, endpoints)
	assert.Empty(t, notes)
	assert.Equal(t, get[pageState](r, "/api/state").Sync.At, applied)

	r.sink.SetEndpoint(endpoint(web, "10.244.1.6:8080", cluster))
	b.err = &sink.FamilyError{Family: model.IPv4, Err: errors.New("no memory")}
	require.Error(t, r.sink.Sync(t.Context()))
	endpoints, notes, at := ask()
	assert.Equal(t, []string{"10.244.1.5:8080"}, endpoints, "the new one is not applied")
	assert.Equal(t, []string{"the last Sync failed, so this is what was applied before: IPv4: no memory"}, notes)
	assert.Equal(t, applied, at)

	b.err = &sink.FamilyError{Family: model.IPv4, Err: &sink.PortError{Port: web.PortName(web.Ports[0]),
		Family: model.IPv4, Err: errors.New("no room")}}
	require.Error(t, r.sink.Sync(t.Context()))
	endpoints, notes, _ = ask()
	assert.Len(t, endpoints, 2)
	assert.Equal(t, []string{
		"the backend refused a part of this service: service port shop/web:http/TCP (IPv4): no room"}, notes)

	b.err, b.problems = nil, map[model.ServiceName][]string{web.Name: {"203.0.113.1:80/TCP belongs to x/y:http/TCP"}}
	r.apply()
	_, notes, _ = ask()
	assert.Equal(t, []string{
		"the backend does not serve all of this service: 203.0.113.1:80/TCP belongs to x/y:http/TCP"}, notes)
}

// If the backend reports something new about services that have not changed, browsers load them again.
func TestNewsOfTheBackendReachBrowsers(t *testing.T) {
	b := &backend{}
	r := newRig(t, b, Options{})
	web := service("web", 1, false)
	r.sink.SetService(web)
	r.apply()
	news := func() bool {
		before := r.view()
		_ = r.sink.Sync(t.Context())
		now := r.view()
		return r.message(&before, &now).All
	}
	assert.False(t, news())
	b.problems = map[model.ServiceName][]string{web.Name: {"lost"}}
	assert.True(t, news())
	b.problems = nil
	assert.False(t, news(), "it is as before")
	b.err = &sink.PortError{Port: web.PortName(web.Ports[0]), Family: model.IPv4, Err: errors.New("no room")}
	assert.True(t, news())
	assert.False(t, news())
	b.err = nil
	assert.True(t, news())
}

// A family that fails as a whole comes before thousands of service ports that the text has no room for.
func TestTheTextBeginsWithWhatFailedAsAWhole(t *testing.T) {
	var ports []error
	for i := range 1000 {
		ports = append(ports, &sink.PortError{Port: model.PortName{Port: fmt.Sprint(i)}, Family: model.IPv4,
			Err: errors.New("refused")})
	}
	some := errors.Join(&sink.FamilyError{Family: model.IPv4, Err: errors.Join(ports...)})
	all := errors.Join(some, &sink.FamilyError{Family: model.IPv6, Err: errors.New("no memory")})
	assert.True(t, strings.HasPrefix(textOf(all), "IPv6: no memory\nIPv4: "), "%.100s", textOf(all))
	assert.LessOrEqual(t, len(textOf(all)), maxErrorBytes+4)
	assert.Equal(t, "apply table t: busy: retry", textOf(fmt.Errorf("apply table t: %w: %w", errors.New("busy"),
		errors.New("retry"))))
	assert.Empty(t, textOf(nil))

	b := &backend{}
	r := newRig(t, b, Options{})
	for _, b.err = range []error{some, all} {
		require.Error(t, r.sink.Sync(t.Context()))
	}
	events := get[pageState](r, "/api/state").Events
	require.NotEmpty(t, events)
	assert.Contains(t, events[0].Text, "IPv6: no memory")
}
