package nft_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// What is said of a service is in the tables, and what all services have together is all that there is of services.
func TestAServiceIsDescribedByWhatIsInTheTables(t *testing.T) {
	r := newRig(t, nft.Options{})
	describe := func(name model.ServiceName) string {
		text, err := r.backend.DescribeService(t.Context(), name)
		require.NoError(t, err)
		return text
	}
	values := backendtest.EveryFeature()
	r.Set(values...)
	assert.Empty(t, describe(model.ServiceName{Namespace: "default", Name: "web"}), "nothing is applied yet")
	r.Sync()
	dump := r.dumps()
	described := map[string]bool{}
	for _, v := range values {
		s, ok := v.(*model.Service)
		if !ok {
			continue
		}
		text := describe(s.Name)
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			require.True(t, strings.HasPrefix(line, "add "), line)
			if _, element, ok := strings.Cut(line, " { "); ok && strings.HasPrefix(line, "add element ") {
				element = strings.TrimSuffix(element, " }")
				assert.Contains(t, dump, element, "%v", s.Name)
				described[element] = true
			}
			if f := strings.Fields(line); strings.HasPrefix(line, "add chain ") {
				assert.Contains(t, dump, "chain "+f[len(f)-1]+" {", "%v", s.Name)
			} else if strings.HasPrefix(line, "add rule ") {
				assert.Contains(t, dump, "\t\t"+strings.Join(f[5:], " ")+"\n", "%v", s.Name)
			}
		}
	}
	for line := range strings.Lines(dump) {
		if _, comment, ok := strings.Cut(line, ` comment "`); ok && strings.Contains(line, " : goto ") {
			element := strings.TrimSuffix(strings.TrimSpace(line[strings.LastIndex(line, "{")+1:]), ",")
			element = strings.TrimSuffix(element, " }")
			assert.True(t, described[element], "nobody described %s of %s", element, comment)
		}
	}
	assert.Empty(t, describe(model.ServiceName{Namespace: "default", Name: "unknown"}))
}

func TestADescriptionHasAChainThatPortsShareOnce(t *testing.T) {
	r := newRig(t, nft.Options{})
	web := fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Port("https", 443).Build()
	r.Set(web, fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build(),
		fm.Endpoint("default/web:https/TCP", "10.244.1.5:8443").Build())
	r.Sync()
	text, err := r.backend.DescribeService(t.Context(), web.Name)
	require.NoError(t, err)
	assert.Equal(t, 2, strings.Count(text, " : goto cluster-1 "), text)
	assert.Equal(t, 1, strings.Count(text, "add chain ip kube-proxy-lib cluster-1\n"), text)
	assert.Equal(t, 1, strings.Count(text, "add rule ip kube-proxy-lib cluster-1 "), text)
}
