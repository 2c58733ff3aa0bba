package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A running proxy is asked through its page. Its error messages are passed on.
func TestFlowOfARunningProxy(t *testing.T) {
	const question = "outside 203.0.113.7 -> 10.96.0.10:53/UDP"
	want := string(output(t, "flow", "-o", "json", question))
	var asked string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path + " " + r.FormValue("q")
		if r.FormValue("q") != question {
			http.Error(w, "flow: there is none", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, want)
	}))
	defer proxy.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"flow", question, "--url", proxy.URL + "/page/", "-o", "json"}, &out,
		io.Discard))
	assert.Equal(t, want, out.String())
	assert.Equal(t, "/page/api/flow "+question, asked)
	err := run(t.Context(), []string{"flow", "x", "--url", proxy.URL}, &out, io.Discard)
	assert.ErrorContains(t, err, "400 Bad Request: flow: there is none")
}

// A running proxy explains a service as this program itself does. One that does not answer is not waited for forever.
func TestExplainOfARunningProxy(t *testing.T) {
	stuck := make(chan struct{})
	want := output(t, "explain", "-o", "json", "shop/web")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/page/api/explain?name=web&namespace=shop" {
			<-stuck
			return
		}
		_, _ = w.Write(want)
	}))
	defer server.Close()
	defer close(stuck)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"explain", "shop/web", "--url", server.URL + "/page/", "-o", "json"},
		&out, io.Discard))
	assert.Equal(t, string(want), out.String())
	err := run(t.Context(), []string{"explain", "no/body", "--url", server.URL + "/page/", "--timeout", "1ms"}, &out,
		io.Discard)
	assert.ErrorContains(t, err, "no answer: a larger --timeout")
	assert.EqualError(t, run(t.Context(), []string{"state", "--url", server.URL}, &out, io.Discard),
		"unknown flag: --url: see kubectl serviceproxy state --help")
}
