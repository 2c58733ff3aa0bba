package kubeproxy_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestAStreamedListThatDoesNotEndIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, registry := newManual(), prometheus.NewRegistry()
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: &sink.Recorder{}, Metrics: registry})
		<-src.started
		src.Handler.(interface{ ListUnended(metav1.Object) }).ListUnended(&corev1.Service{})
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kubeproxy_unended_lists_total Streamed lists whose end did not come, by resource
# TYPE kubeproxy_unended_lists_total counter
kubeproxy_unended_lists_total{resource="services"} 1
`), "kubeproxy_unended_lists_total"))
		require.NoError(t, stop())
	})
}
