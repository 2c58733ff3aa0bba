package page

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// counting is a backend that counts traffic.
type counting struct {
	backend
	counts map[model.ServiceName]sink.Traffic
	err    error
	takes  time.Duration
	asked  int
}

func (c *counting) SetService(*model.Service)        {}
func (c *counting) DeleteService(model.ServiceName)  {}
func (c *counting) SetEndpoint(*model.Endpoint)      {}
func (c *counting) DeleteEndpoint(model.EndpointKey) {}

func (c *counting) CountTraffic(ctx context.Context) (map[model.ServiceName]sink.Traffic, error) {
	c.asked++
	select {
	case <-time.After(c.takes): // in the test's own time
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	counts := map[model.ServiceName]sink.Traffic{}
	for name, one := range c.counts {
		counts[name] = one
	}
	if c.counts == nil || c.err != nil {
		counts = nil
	}
	return counts, c.err
}

func (c *counting) count(name string, connections, bytes uint64) {
	n := model.ServiceName{Namespace: "shop", Name: name}
	sum := c.counts[n]
	c.counts[n] = sink.Traffic{Connections: sum.Connections + connections, Bytes: sum.Bytes + bytes}
}

// Rates are what has been counted between two questions, of each service and in all.
func TestTrafficIsShownAsRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{counts: map[model.ServiceName]sink.Traffic{}}
		r := newRig(t, c, Options{})
		for i, name := range []string{"a", "b", "c"} {
			r.sink.SetService(service(name, i, false))
		}
		r.apply()
		c.count("a", 1_000_000, 7)
		c.count("b", 5, 0)
		c.count("c", 500, 0)
		first := get[trafficState](r, "/api/traffic")
		assert.Equal(t, &trafficState{Counted: true, Busiest: []serviceRate{}}, first, "one answer is no rate")
		assert.Nil(t, get[serviceList](r, "/api/services").Services[0].Rate)

		time.Sleep(5 * time.Second)
		c.count("a", 50, 5000)
		c.count("b", 100, 0)
		a, b := rate{Connections: 10, Bytes: 1000}, rate{Connections: 20}
		name := func(n string) model.ServiceName { return model.ServiceName{Namespace: "shop", Name: n} }
		assert.Equal(t, &trafficState{Counted: true, Seconds: 5, Total: rate{Connections: 30, Bytes: 1000},
			Busiest: []serviceRate{{name("b"), b}, {name("a"), a}}, Service: &a},
			get[trafficState](r, "/api/traffic", "namespace", "shop", "name", "a"))
		var rates []*rate
		for _, s := range get[serviceList](r, "/api/services").Services {
			rates = append(rates, s.Rate)
		}
		assert.Equal(t, []*rate{&a, &b, {}}, rates)
		assert.Equal(t, &b, get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "b").Summary.Rate)

		// A counter that began again has counted what it says.
		time.Sleep(5 * time.Second)
		delete(c.counts, name("a"))
		c.count("a", 15, 0)
		assert.Equal(t, rate{Connections: 3}, get[trafficState](r, "/api/traffic").Total)

		// What happened while nobody looked is no rate, and old rates are not shown.
		time.Sleep(2 * sampleLife)
		assert.Nil(t, get[serviceList](r, "/api/services").Services[0].Rate)
		c.count("a", 1_000_000, 0)
		assert.Equal(t, first, get[trafficState](r, "/api/traffic"))
	})
}

// However many browsers ask, and however long it takes, the backend is seldom asked; and never by a Sync.
func TestTheBackendIsSeldomAskedForTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{counts: map[model.ServiceName]sink.Traffic{}}
		r := newRig(t, c, Options{})
		r.apply()
		get[pageState](r, "/api/state")
		get[serviceList](r, "/api/services")
		assert.Zero(t, c.asked)
		for range 100 {
			get[trafficState](r, "/api/traffic")
		}
		assert.Equal(t, 1, c.asked)
		time.Sleep(samplePause)
		c.takes = 2 * time.Second
		for range 25 {
			get[trafficState](r, "/api/traffic")
			time.Sleep(samplePause)
		}
		assert.Equal(t, 2, c.asked, "two seconds of a hundred")
		get[trafficState](r, "/api/traffic")
		assert.Equal(t, 3, c.asked)
	})
}

func TestABackendThatDoesNotCountOrFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uncounted := &trafficState{Busiest: []serviceRate{}}
		assert.Equal(t, uncounted, get[trafficState](newRig(t, nil, Options{}), "/api/traffic"))
		c := &counting{}
		r := newRig(t, c, Options{})
		assert.Equal(t, uncounted, get[trafficState](r, "/api/traffic"))
		time.Sleep(samplePause)
		c.err = errors.New("out of memory")
		want := &trafficState{Counted: true, Error: "out of memory", Busiest: []serviceRate{}}
		assert.Equal(t, want, get[trafficState](r, "/api/traffic"))

		// One that hangs is not waited for without end.
		time.Sleep(samplePause)
		c.err, c.takes = nil, time.Hour
		began := time.Now()
		assert.Equal(t, want, get[trafficState](r, "/api/traffic"))
		assert.Equal(t, sampleTimeout, time.Since(began))
		c.counts, c.takes = map[model.ServiceName]sink.Traffic{}, 0
		require.True(t, get[trafficState](r, "/api/traffic").Counted)
	})
}
