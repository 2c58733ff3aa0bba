package brain

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/internal/watchhealth"
)

// serverMetrics are the metrics of a server: see the package documentation.
type serverMetrics struct {
	batches                *prometheus.CounterVec
	diff                   prometheus.Counter // of batches
	sentBytes, applyErrors prometheus.Counter
	refused                *prometheus.CounterVec
	publish, delivery      prometheus.Histogram
	lists                  watchhealth.Lists
}

const metricPrefix = "kubeproxy_remote_"

func newServerMetrics() *serverMetrics {
	m := &serverMetrics{
		batches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "batches_total", Help: "Batches sent to clients, by kind"},
			[]string{"kind"}),
		sentBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + "sent_bytes_total",
			Help: "Bytes of batches sent"}),
		applyErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + "apply_errors_total",
			Help: "Times a client started to report an error"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "refused_total",
			Help: "Clients and connections that were not admitted, by reason"}, []string{"reason"}),
		publish: prom.NewOneHistogram(metricPrefix+"publish_duration_seconds",
			"How long it took to work out a revision, and to send it to those that waited for it", prom.Work()),
		delivery: prom.NewOneHistogram(metricPrefix+"delivery_duration_seconds",
			"From a change that the server saw to a client's acknowledgement that it is applied", prom.Latency()),
		lists: watchhealth.NewLists(metricPrefix),
	}
	m.diff = m.batches.WithLabelValues("diff")
	return m
}

// registerMetrics registers the metrics of the server.
func (s *Server) registerMetrics(r prometheus.Registerer) (unregister func(), err error) {
	count := func(name, help string, is func(ClientStatus) bool) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}, func() float64 {
			n := 0
			for _, c := range s.Clients() {
				if is(c) {
					n++
				}
			}
			return float64(n)
		})
	}
	age := func(name, help string, of func() time.Duration) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help},
			func() float64 { return of().Seconds() })
	}
	silence := func() time.Duration {
		_, age, quiet := s.silence()
		return max(0, age-quiet)
	}
	gauge := func(name, help string, of func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(of())
		})
	}
	m := s.metrics
	return prom.RegisterAll(r, m.lists, m.batches, m.sentBytes, m.applyErrors, m.refused, m.publish, m.delivery,
		count("clients", "Connected clients", func(ClientStatus) bool { return true }),
		count("clients_behind", "Clients that have not acknowledged the newest revision",
			func(c ClientStatus) bool { return !c.BehindSince.IsZero() }),
		count("clients_failing", "Clients that could not apply everything",
			func(c ClientStatus) bool { return c.Error != "" }),
		count("clients_without_zone", "Clients that are served like nodes without a zone, because there are enough classes",
			func(c ClientStatus) bool { return c.WithoutZone }),
		age("watch_age_seconds", "Time since the API server last sent anything about a kind of object, of the "+
			"kind for which that is longest; 0: unknown", silence),
		age("publishing_seconds", "How long the current revision has been in progress; 0: none is", s.publishingFor),
		gauge("revision", "The newest revision", func() int { return int(s.revision) }),
		gauge("classes", "Classes of nodes, each with a state of its own", func() int { return len(s.classes) }),
		gauge("kept_bytes", "Approximate memory of older versions that are kept for clients that reconnect",
			func() (sum int) {
				for _, c := range s.classes {
					sum += c.kept
				}
				return sum
			}),
		gauge("clients_waiting", "Clients waiting for a slot to receive a full state", func() int {
			return max(0, s.slotUsers.sum()-len(s.slots))
		}),
	)
}

// refuse counts a client that is not admitted, and returns the error that ends its stream.
func (m *serverMetrics) refuse(reason string, code codes.Code, why error) error {
	m.refused.WithLabelValues(reason).Inc()
	return status.Error(code, why.Error())
}
