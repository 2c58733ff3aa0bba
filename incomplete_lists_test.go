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
		src.Handler.(interface{ ListIncomplete(metav1.Object) }).ListIncomplete(&corev1.Service{})
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kubeproxy_incomplete_lists_total Streamed lists that did not complete, by resource
# TYPE kubeproxy_incomplete_lists_total counter
kubeproxy_incomplete_lists_total{resource="services"} 1
`), "kubeproxy_incomplete_lists_total"))
		require.NoError(t, stop())
	})
}
