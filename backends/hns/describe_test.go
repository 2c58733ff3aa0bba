package hns

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// describe returns the lines about a service, without comments.
func describe(t *testing.T, b *Backend, name model.ServiceName) (lines []string) {
	t.Helper()
	text, err := b.DescribeService(t.Context(), name)
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "# ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// The descriptions of all services together contain everything that HNS has, each load balancer once.
func TestAServiceIsDescribedByWhatHNSHas(t *testing.T) {
	m := newMachine(t)
	m.addPod("10.244.1.53")
	m.addPod("10.244.1.8")
	b := m.start(t)
	values := backendtest.EveryFeature()
	backendtest.Set(t, b, values...)
	web := model.ServiceName{Namespace: "default", Name: "web"}
	require.Empty(t, describe(t, b, web), "nothing is applied yet")
	_ = b.Sync(t.Context()) // not every pod has an endpoint

	want, got := map[string]int{}, map[string]int{}
	for line := range strings.Lines(m.hns.Dump()) {
		if !strings.Contains(line, "endpoint 10.244.1.6,") { // no service uses it
			want[line] = 1
		}
	}
	for _, v := range values {
		if s, ok := v.(*model.Service); ok {
			for _, line := range describe(t, b, s.Name) {
				got[line]++
			}
		}
	}
	for line := range got {
		if strings.Contains(line, " endpoint 10.244.1.5,") { // in both families
			got[line]--
		}
	}
	require.Equal(t, want, got)
	require.Empty(t, describe(t, b, model.ServiceName{Namespace: "default", Name: "unknown"}))
	require.NoError(t, b.CleanUp(t.Context()))
	require.Empty(t, describe(t, b, web))
}
