package prom_test

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
)

// protobuf is what Prometheus accepts if it collects native histograms.
const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited," +
	"text/plain;version=0.0.4;q=0.1"

// scrape returns what a scrape of a registry gets.
func scrape(r *prometheus.Registry, accept string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, req)
	return w
}

func registered(c prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	return r
}

// empty returns an empty value of the type that a pointer points at.
func empty[T any](*T) *T { return new(T) }

// TestAScrapeInProtobufHasNativeHistograms, with the bucket of each value, beside the classic buckets.
func TestAScrapeInProtobufHasNativeHistograms(t *testing.T) {
	h := prom.NewHistogram("seconds", "Seconds", prom.Work())
	for _, v := range []float64{0.001, 0.00101, 0.5} {
		h.WithLabelValues("IPv6").Observe(v)
	}
	r := registered(h)
	w := scrape(r, protobuf)
	require.Contains(t, w.Header().Get("Content-Type"), "application/vnd.google.protobuf")
	families, err := r.Gather()
	require.NoError(t, err)
	family := empty(families[0])
	require.NoError(t, protodelim.UnmarshalFrom(w.Body, family))
	require.Equal(t, "seconds", family.GetName())
	require.Len(t, family.GetMetric(), 1)
	m := family.GetMetric()[0]
	assert.Equal(t, "IPv6", m.GetLabel()[0].GetValue())
	got := m.GetHistogram()
	assert.EqualValues(t, 3, got.GetSchema(), "a bucket is 2^(2^-3) times as wide as the one before it")
	assert.Len(t, got.GetBucket(), len(prom.Work()))
	var buckets []int32
	at := int32(0)
	for _, span := range got.GetPositiveSpan() {
		at += span.GetOffset()
		for range span.GetLength() {
			buckets = append(buckets, at)
			at++
		}
	}
	// Bucket i ends at 2^(i/8): -79 at 1.065 ms, -8 at 0.5 s.
	assert.Equal(t, []int32{-79, -8}, buckets)
	assert.Equal(t, []int64{2, -1}, got.GetPositiveDelta(), "two values, then one less")
}

var boundary = regexp.MustCompile(`le="([0-9.e+-]+)"`)

// TestAScrapeAsTextHasTheBucketsOfKubeProxy, and finer ones before them.
func TestAScrapeAsTextHasTheBucketsOfKubeProxy(t *testing.T) {
	work := prometheus.ExponentialBuckets(0.001, 2, 15)
	latency := slices.Concat([]float64{0.25, 0.5}, prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
	for name, tc := range map[string]struct {
		buckets, upstream []float64
		below             int
	}{
		"work":    {prom.Work(), work, 4},
		"latency": {prom.Latency(), latency, 7},
	} {
		t.Run(name, func(t *testing.T) {
			h := prom.NewHistogram("seconds", "Seconds", tc.buckets)
			h.WithLabelValues("IPv4").Observe(0.0007)
			w := scrape(registered(h), "")
			require.Contains(t, w.Header().Get("Content-Type"), "text/plain")
			text, err := io.ReadAll(w.Body)
			require.NoError(t, err)
			var got []float64
			for _, m := range boundary.FindAllStringSubmatch(string(text), -1) {
				v, err := strconv.ParseFloat(m[1], 64)
				require.NoError(t, err)
				got = append(got, v)
			}
			require.True(t, slices.IsSorted(got))
			require.Equal(t, tc.upstream, got[tc.below:])
			assert.Contains(t, string(text), `seconds_bucket{ip_family="IPv4",le="0.001"} 1`)
			assert.Contains(t, string(text), `seconds_bucket{ip_family="IPv4",le="+Inf"} 1`)
			assert.Contains(t, string(text), `seconds_count{ip_family="IPv4"} 1`)
		})
	}
}

// The memory of a series is bounded, whatever is observed, such as the negative latency of a clock that is behind.
func TestTheNumberOfBucketsIsBounded(t *testing.T) {
	h := prom.NewHistogram("seconds", "Seconds", prom.Work())
	for v := 1e-12; v < 1e12; v *= 1.05 {
		h.WithLabelValues("IPv4").Observe(v)
		h.WithLabelValues("IPv4").Observe(-v)
	}
	families, err := registered(h).Gather()
	require.NoError(t, err)
	got := families[0].GetMetric()[0].GetHistogram()
	assert.LessOrEqual(t, len(got.GetPositiveDelta())+len(got.GetNegativeDelta()), 160)
}

// TestNoHistogramIsMadeElsewhere checks that only this package creates histograms, so that all have the native form.
func TestNoHistogramIsMadeElsewhere(t *testing.T) {
	const root, here = "../..", "../../internal/prom"
	seen := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if strings.Contains(string(source), "prometheus.HistogramOpts{") {
			seen++
			assert.Equal(t, here, filepath.ToSlash(filepath.Dir(path)), path)
		}
		return err
	}))
	require.Equal(t, 1, seen)
}

func BenchmarkObserve(b *testing.B) {
	classic := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds", Help: "Seconds",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, []string{"ip_family"})
	for _, bc := range []struct {
		name string
		h    *prometheus.HistogramVec
	}{
		{"classic", classic},
		{"work", prom.NewHistogram("seconds", "Seconds", prom.Work())},
		{"latency", prom.NewHistogram("seconds", "Seconds", prom.Latency())},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			v := 0.0001
			for b.Loop() {
				bc.h.WithLabelValues("IPv4").Observe(v)
				if v *= 1.1; v > 1 {
					v = 0.0001
				}
			}
		})
	}
}
