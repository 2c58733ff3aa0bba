package prom

import "github.com/prometheus/client_golang/prometheus"

// The resolution of native histograms: each bucket is at most 10% wider than the previous one. The 160 buckets cover a
// factor of a million. If a series needs more, its resolution is halved; it is never reset, because that would also
// reset the classic buckets.
const (
	bucketFactor = 1.1
	maxBuckets   = 160
)

// NewHistogram returns a histogram for each IP family.
func NewHistogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(options(name, help, buckets), []string{"ip_family"})
}

// NewOneHistogram returns a histogram without IP families.
func NewOneHistogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(options(name, help, buckets))
}

func options(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: bucketFactor, NativeHistogramMaxBucketNumber: maxBuckets}
}

// Work returns boundaries for the duration of work. Kube-proxy's are 1 ms and its doublings up to 16 s; four halvings,
// down to 62.5 us, precede them.
func Work() []float64 {
	return append(prometheus.ExponentialBuckets(0.001/16, 2, 4), prometheus.ExponentialBuckets(0.001, 2, 15)...)
}

// Latency returns boundaries for the time until a change is applied. Kube-proxy's are 0.25 s to 300 s, finest around
// the service level objective; 1 ms to 100 ms precede them.
func Latency() []float64 {
	buckets := []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5}
	buckets = append(buckets, prometheus.LinearBuckets(1, 1, 59)...)
	buckets = append(buckets, prometheus.LinearBuckets(60, 5, 12)...)
	return append(buckets, prometheus.LinearBuckets(120, 30, 7)...)
}
