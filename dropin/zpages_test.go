package dropin

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/node/page"
)

// askMetrics requests a path from the metrics server of a program started with a command line.
func askMetrics(t *testing.T, handler http.Handler, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequest(http.MethodGet, path, nil)
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	return answer
}

func metricsOf(t *testing.T, p *page.Page, args ...string) http.Handler {
	t.Helper()
	s, _, err := fromArgs(t, args...)
	require.NoError(t, err)
	handler, err := metricsHandler(s, prometheus.NewRegistry(), p)
	require.NoError(t, err)
	return handler
}

const statuszJSON = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz"

func TestStatuszSaysHowLongWhatHasRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now().Format(time.UnixDate)
		handler := metricsOf(t, &page.Page{}, "--profiling")
		time.Sleep(25*time.Hour + 2*time.Minute + time.Second)
		answer := askMetrics(t, handler, "/statusz", statuszJSON)
		require.Equal(t, http.StatusOK, answer.Code)
		assert.Equal(t, "application/json", answer.Header().Get("Content-Type"))
		assert.Empty(t, answer.Header().Get("Warning"))
		var got map[string]any
		require.NoError(t, yaml.Unmarshal(answer.Body.Bytes(), &got))
		assert.NotEmpty(t, got["goVersion"])
		assert.Contains(t, got, "binaryVersion")
		delete(got, "goVersion")
		delete(got, "binaryVersion")
		assert.Equal(t, map[string]any{
			"apiVersion": "config.k8s.io/v1beta1", "kind": "Statusz", "metadata": map[string]any{"name": "kube-proxy"},
			"startTime": "2000-01-01T00:00:00Z", "uptimeSeconds": 90121.0,
			"paths": []any{"/configz", "/debug", "/flagz", "/healthz", "/metrics", "/page", "/proxyMode"},
		}, got)

		text := askMetrics(t, handler, "/statusz", "")
		assert.Equal(t, "text/plain; charset=utf-8", text.Header().Get("Content-Type"))
		assert.Regexp(t, `^\nkube-proxy statusz\nWarning: This endpoint is not meant to be machine parseable.*\n\n`+
			`Started: `+started+`\nUp: 25 hr 02 min 01 sec\nGo version: go.*\nBinary version: .*\n`+
			`Paths: /configz /debug /flagz /healthz /metrics /page /proxyMode\n$`, text.Body.String())

		answer = askMetrics(t, metricsOf(t, nil), "/statusz", statuszJSON)
		assert.Contains(t, answer.Body.String(), `"paths":["/configz","/flagz","/healthz","/metrics","/proxyMode"]`)
	})
}

func TestFlagzSaysTheValueOfEachFlag(t *testing.T) {
	handler := metricsOf(t, nil, "--config-sync-period=3m", "--nodeport-addresses=10.0.0.0/8,192.0.2.0/24",
		"--feature-gates=KubeProxyIPVS=true", "--hostname-override=n2", "-v=3")
	answer := askMetrics(t, handler, "/flagz", "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz")
	require.Equal(t, http.StatusOK, answer.Code)
	assert.Equal(t, "application/yaml", answer.Header().Get("Content-Type"))
	var got struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Flags            map[string]string
	}
	require.NoError(t, yaml.UnmarshalStrict(answer.Body.Bytes(), &got))
	assert.Equal(t, "config.k8s.io/v1beta1 Flagz kube-proxy", got.APIVersion+" "+got.Kind+" "+got.Metadata.Name)
	for flag, want := range map[string]string{
		"config-sync-period": "3m0s", "nodeport-addresses": "[10.0.0.0/8,192.0.2.0/24]", "v": "3", "cleanup": "false",
		"feature-gates": "KubeProxyIPVS=true", "hostname-override": "n2", "conntrack-min": "131072", "kubeconfig": "",
	} {
		value, ok := got.Flags[flag]
		assert.True(t, ok, flag)
		assert.Equal(t, want, value, flag)
	}
	text := askMetrics(t, handler, "/flagz", "text/plain")
	assert.Regexp(t, `^\nkube-proxy flagz\nWarning: .*\n\n(.*\n)*cleanup=false\n(.*\n)*v=3\n`, text.Body.String())
	assert.NotEqual(t, text.Body.String(), askMetrics(t, handler, "/statusz", "").Body.String())
}

func TestObjectsAreOnlyForThoseWhoAskForTheirVersion(t *testing.T) {
	handler := metricsOf(t, nil)
	for _, test := range []struct {
		accept, want string // "": not acceptable
	}{
		{"", "text/plain; charset=utf-8"},
		{" ", "text/plain; charset=utf-8"},
		{"text/plain", "text/plain; charset=utf-8"},
		{"text/*", "text/plain; charset=utf-8"},
		{"*/*", "text/plain; charset=utf-8"},
		{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/plain; charset=utf-8"},
		{statuszJSON, "application/json"},
		{"*/*;v=v1beta1;g=config.k8s.io;as=Statusz", "application/json"},
		{"application/*;v=v1alpha1;g=config.k8s.io;as=Statusz", "application/json"},
		{"text/plain;q=0.5, " + statuszJSON + ";q=0.9", "application/json"},
		{statuszJSON + ";q=0.5, text/plain;q=0.9", "text/plain; charset=utf-8"},
		{statuszJSON + ";q=0", ""},
		{"application/json;v=v2;g=config.k8s.io;as=Statusz, */*", "text/plain; charset=utf-8"},
		{"; ;, " + statuszJSON, "application/json"},
		{"application/json", ""},
		{"application/json;v=v1beta1;g=config.k8s.io", ""},
		{"application/json;v=v1beta1;g=config.k8s.io;as=Flagz", ""},
		{"application/json;v=v2;g=config.k8s.io;as=Statusz", ""},
		{"application/cbor;v=v1beta1;g=config.k8s.io;as=Statusz", ""},
		{"text/plain;v=v1beta1;g=config.k8s.io;as=Statusz", ""},
		{"application/xml", ""},
		{";;;", ""},
	} {
		answer := askMetrics(t, handler, "/statusz", test.accept)
		if test.want == "" {
			assert.Equal(t, http.StatusNotAcceptable, answer.Code, test.accept)
			assert.Contains(t, answer.Body.String(), "as=Statusz", test.accept)
			continue
		}
		assert.Equal(t, http.StatusOK, answer.Code, test.accept)
		assert.Equal(t, test.want, answer.Header().Get("Content-Type"), test.accept)
	}
	old := askMetrics(t, handler, "/flagz", "application/json;v=v1alpha1;g=config.k8s.io;as=Flagz")
	assert.Contains(t, old.Body.String(), `"apiVersion":"config.k8s.io/v1alpha1"`)
	assert.Contains(t, old.Header().Get("Warning"), "deprecated")
}

func TestFeatureGatesTurnStatuszAndFlagzOff(t *testing.T) {
	for _, test := range []struct {
		gates          string
		statusz, flagz int
	}{
		{"ComponentStatusz=false", http.StatusNotFound, http.StatusOK},
		{"ComponentFlagz=false", http.StatusOK, http.StatusNotFound},
		{"AllBeta=false", http.StatusNotFound, http.StatusNotFound},
		{"AllBeta=false,ComponentStatusz=true", http.StatusOK, http.StatusNotFound},
	} {
		handler := metricsOf(t, nil, "--feature-gates="+test.gates)
		assert.Equal(t, test.statusz, askMetrics(t, handler, "/statusz", "").Code, test.gates)
		assert.Equal(t, test.flagz, askMetrics(t, handler, "/flagz", "").Code, test.gates)
	}
	without := metricsOf(t, nil, "--feature-gates=ComponentFlagz=false")
	assert.NotContains(t, askMetrics(t, without, "/statusz", "").Body.String(), "flagz")
}
