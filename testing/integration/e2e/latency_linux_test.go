package e2e_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
)

// BenchmarkNetworkProgrammingLatency creates a Deployment of 300 pods behind a Service, on six nodes, and reports
// quantiles of kubeproxy_network_programming_duration_seconds of all nodes: what SIG Scalability takes, from the
// readiness of a pod, as the controller of EndpointSlices notes it, to the end of the proxy's Sync, which has written
// the rules. They do not end with a packet. Between two limits of the histogram's buckets quantiles are interpolated,
// as Prometheus does. Run it with -benchtime 1x: every cluster runs until the end.
func BenchmarkNetworkProgrammingLatency(b *testing.B) {
	const nodes, pods = 6, 300
	programs := needCluster(b)
	folder := cluster.Build(b, "kube-proxy")
	ours := filepath.Join(folder, "kube-proxy")
	for _, proxy := range []struct{ name, program string }{{"kube-proxy", "kube-proxy"}, {"kube-proxy-lib", ours}} {
		b.Run(proxy.name, func(b *testing.B) {
			for b.Loop() {
				dir := filepath.Join(b.TempDir(), "cluster")
				r := newRecipe(b, e2e.Options{Dir: dir, Nodes: nodes, Programs: programs}, "", folder)
				require.NoError(b, r.c.Proxy(b.Context(), proxy.program+" --kubeconfig={kubeconfig} --proxy-mode=nftables "+
					"--hostname-override={node} --cluster-cidr={clusterCIDRs} --conntrack-max-per-core=0 --oom-score-adj=0", ""))
				r.shell("kubectl -n kube-system rollout status deployment coredns --timeout=5m")
				before, samplesBefore := r.programmingLatency(nodes)
				begin := time.Now()
				r.shell(fmt.Sprintf("kubectl create deployment web --replicas=%d --image=%s -- /agnhost netexec", pods,
					imageutils.GetE2EImage(imageutils.Agnhost)))
				r.shell("kubectl expose deployment web --port=80 --target-port=8080")
				r.shell("kubectl rollout status deployment web --timeout=20m")
				b.ReportMetric(time.Since(begin).Seconds(), "s-until-all-are-ready")
				r.awaitEndpoints(nodes, pods)
				buckets, samples := r.programmingLatency(nodes)
				for limit, n := range before {
					buckets[limit] -= n
				}
				count := samples - samplesBefore
				require.Positive(b, count)
				for _, q := range []struct {
					quantile float64
					name     string
				}{{0.5, "p50-s"}, {0.99, "p99-s"}} {
					b.ReportMetric(quantile(q.quantile, buckets, count), q.name)
				}
				b.ReportMetric(count, "samples")
			}
		})
	}
}

// awaitEndpoints waits until the rules of every node have all pods of the Service.
func (r *recipe) awaitEndpoints(nodes, pods int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		list, err := r.client.CoreV1().Pods("default").List(r.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(list.Items) != pods {
			return false
		}
		for i := range nodes {
			rules, err := r.try(fmt.Sprintf("n%d", i+1), "nft", "list", "ruleset")
			if err != nil {
				return false
			}
			for _, p := range list.Items {
				if ip := p.Status.PodIP; !strings.Contains(rules, ip+":8080") && !strings.Contains(rules, ip+" . 8080") {
					return false
				}
			}
		}
		return true
	}, waitTimeout, time.Second, "all pods are in the rules of all nodes")
}

// programmingLatency returns the sums of the buckets of all nodes, and how many samples there are.
func (r *recipe) programmingLatency(nodes int) (buckets map[float64]float64, count float64) {
	buckets = map[float64]float64{}
	for i := range nodes {
		text := r.on(fmt.Sprintf("n%d", i+1), "curl", "--silent", "--show-error", "--fail", "http://127.0.0.1:10249/metrics")
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		require.NoError(r.t, err)
		for _, m := range families["kubeproxy_network_programming_duration_seconds"].GetMetric() {
			for _, bucket := range m.GetHistogram().GetBucket() {
				buckets[bucket.GetUpperBound()] += float64(bucket.GetCumulativeCount())
			}
			count += float64(m.GetHistogram().GetSampleCount())
		}
	}
	return buckets, count
}

// quantile is what histogram_quantile of Prometheus returns.
func quantile(q float64, buckets map[float64]float64, count float64) float64 {
	var limits []float64
	for limit := range buckets {
		if !math.IsInf(limit, 1) {
			limits = append(limits, limit)
		}
	}
	slices.Sort(limits)
	below, lower := 0.0, 0.0
	for _, limit := range limits {
		if buckets[limit] >= q*count {
			return lower + (limit-lower)*(q*count-below)/(buckets[limit]-below)
		}
		below, lower = buckets[limit], limit
	}
	return lower
}

func TestQuantilesAreThoseOfPrometheus(t *testing.T) {
	buckets := map[float64]float64{0.25: 50, 0.5: 90, 1: 99, math.Inf(1): 100}
	require.InDelta(t, 0.25, quantile(0.5, buckets, 100), 1e-9)
	require.InDelta(t, 1, quantile(0.99, buckets, 100), 1e-9)
	require.InDelta(t, 1, quantile(0.999, buckets, 100), 1e-9, "no more is known than the last limit")
	require.InDelta(t, 0.125, quantile(0.25, buckets, 100), 1e-9)
}
