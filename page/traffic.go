package page

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The backend is asked what its dataplane has counted only while somebody looks, at most every few seconds, and so
// seldom that it takes a small part of the time. Rates are the differences of two answers.

// trafficState is what api/traffic returns.
type trafficState struct {
	// Counted is false if the dataplane does not count.
	Counted bool   `json:"counted"`
	Error   string `json:"error,omitempty"`
	// Seconds is the time that the rates are of; 0: they are not known yet, and Total and Busiest are empty.
	Seconds float64 `json:"seconds"`
	Total   rate    `json:"total"`
	// Busiest are the services with the most new connections.
	Busiest []serviceRate `json:"busiest"`
	// Service is the rate of the service that was asked about, if it is known.
	Service *rate `json:"service,omitempty"`
}

// rate is traffic per second.
type rate struct {
	Connections float64 `json:"connections"`
	Bytes       float64 `json:"bytes,omitempty"`
}

// serviceRate is the rate of a service.
type serviceRate struct {
	Service model.ServiceName `json:"service"`
	rate
}

// sample is an answer of the backend, with the rates since the one before. It is never written to.
type sample struct {
	trafficState
	at, next time.Time // when it was taken, and the earliest time of the next one
	counts   map[model.ServiceName]sink.Traffic
	rates    map[model.ServiceName]rate // nil: not known
}

const (
	samplePause = 4 * time.Second
	// sampleShare: a sample takes at most this part of the time.
	sampleShare = 50
	// sampleLife is how long a sample can be compared with: nobody wants to know the rate of the last hour.
	sampleLife = time.Minute
	// sampleTimeout bounds how long the backend may take.
	sampleTimeout = 30 * time.Second
)

func (p *Page) serveTraffic(w http.ResponseWriter, r *http.Request) {
	var s *sample
	if inTurn(r.Context(), p.counting, func() { s = p.takeSample(r.Context()) }) {
		state := s.trafficState
		state.Service = s.rateOf(model.ServiceName{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")})
		writeJSON(w, state)
	}
}

// takeSample returns the last sample, or a new one if it is time. One call is made at a time.
func (p *Page) takeSample(ctx context.Context) *sample {
	v := p.view()
	counter, ok := v.backend.(sink.TrafficCounter)
	if !ok {
		return &sample{trafficState: trafficState{Busiest: []serviceRate{}}}
	}
	began := time.Now()
	if v.sample != nil && began.Before(v.sample.next) {
		return v.sample
	}
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	counts, err := counter.CountTraffic(ctx)
	if ctx.Err() != nil && err != nil && v.sample != nil {
		return v.sample // a browser that went away is no news about the dataplane
	}
	s := newSample(v.sample, counts, time.Now())
	s.next = s.at.Add(max(samplePause, sampleShare*s.at.Sub(began)))
	if err != nil {
		s.Counted, s.Error = true, shorten(err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sample = s
	return s
}

// newSample compares counts with those of a sample before.
func newSample(before *sample, counts map[model.ServiceName]sink.Traffic, at time.Time) *sample {
	s := &sample{at: at, counts: counts, trafficState: trafficState{Counted: counts != nil, Busiest: []serviceRate{}}}
	if counts == nil || before == nil || before.counts == nil || at.Sub(before.at) > sampleLife || !at.After(before.at) {
		return s
	}
	s.Seconds = at.Sub(before.at).Seconds()
	s.rates = make(map[model.ServiceName]rate, len(counts))
	perSecond := func(was, is uint64) float64 {
		if is < was {
			was = 0 // it began again
		}
		return float64(is-was) / s.Seconds
	}
	for name, now := range counts {
		was := before.counts[name]
		one := rate{perSecond(was.Connections, now.Connections), perSecond(was.Bytes, now.Bytes)}
		if s.rates[name] = one; one == (rate{}) {
			continue
		}
		s.Total.Connections += one.Connections
		s.Total.Bytes += one.Bytes
		s.Busiest = append(s.Busiest, serviceRate{name, one})
	}
	slices.SortFunc(s.Busiest, func(a, b serviceRate) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), cmp.Compare(b.Bytes, a.Bytes), a.Service.Compare(b.Service))
	})
	s.Busiest = slices.Clip(s.Busiest[:min(len(s.Busiest), maxBusiest)])
	return s
}

// rateOf returns the rate of a service, nil if it is not known any more. There may be no sample.
func (s *sample) rateOf(name model.ServiceName) *rate {
	if s == nil || time.Since(s.at) > sampleLife {
		return nil
	}
	if r, ok := s.rates[name]; ok {
		return &r
	}
	return nil
}
