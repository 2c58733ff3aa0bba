package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

func TestOnlyThoseWhoMaySeeIt(t *testing.T) {
	r := newRig(t, nil, Options{Hosts: []string{"Proxy.example"}})
	r.apply()
	ask := func(method, host, path string, header ...string) int {
		q := httptest.NewRequest(method, "http://x"+path, nil)
		q.Host = host
		for i := 0; i < len(header); i += 2 {
			q.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, q)
		for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options",
			"Cross-Origin-Resource-Policy", "X-Frame-Options"} {
			assert.NotEmpty(t, w.Header().Get(name), "%s %s %s", method, host, path)
		}
		assert.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
		return w.Code
	}
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:10249": 200, "node.localhost:1": 200, "127.0.0.1:10249": 200, "[::1]:10249": 200,
		"192.0.2.1": 200,
		"[fe80::1]": 200, "proxy.example:443": 200,
		// Names that an attacker may point at this address.
		"evil.example": 403, "evil.example:10249": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403,
		"": 403,
	} {
		for _, path := range []string{"/", "/page.js", "/api/state", "/api/services", "/api/flow?q=x"} {
			if got := ask("GET", host, path); want == 403 || got == 403 {
				assert.Equal(t, want, got, "%q %s", host, path)
			}
		}
	}

	// Requests that other pages make, and links from them.
	for _, tc := range []struct {
		header []string
		want   int
	}{
		{[]string{"Sec-Fetch-Site", "same-origin"}, 200},
		{[]string{"Sec-Fetch-Site", "none"}, 200},
		{[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}, 403},
		{[]string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403}, // another port of localhost
		{[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, 403},
		{[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		// a link
		{[]string{"Origin", "http://evil.example"}, 403},
		{[]string{"Origin", "null"}, 403},
		{[]string{"Origin", "http://localhost:10249"}, 200},
	} {
		assert.Equal(t, tc.want, ask("GET", "localhost:10249", "/api/state", tc.header...), "%v", tc.header)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		assert.Equal(t, http.StatusMethodNotAllowed, ask(method, "localhost", "/api/state"), method)
	}
	assert.Equal(t, http.StatusNotFound, ask("GET", "localhost", "/assets/page.js"))
}

// A request that asks for headers alone ends, and does not take the place of a browser that follows the page.
func TestAskingForTheHeadersOfEventsEnds(t *testing.T) {
	r := newRig(t, nil, Options{maxBrowsers: 1})
	r.apply()
	ctx, cancel := context.WithCancel(t.Context())
	q := httptest.NewRequestWithContext(ctx, http.MethodHead, "http://localhost/api/events", nil)
	w := &endingWriter{httptest.NewRecorder(), cancel}
	r.ServeHTTP(w, q)
	assert.NoError(t, ctx.Err(), "there is no message to write")
	assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
	cancel()
}

// endingWriter ends a request when something is written.
type endingWriter struct {
	*httptest.ResponseRecorder
	end func()
}

func (w *endingWriter) Write(b []byte) (int, error) {
	w.end()
	return w.ResponseRecorder.Write(b)
}

// The cost of a question is bounded: each word of it is searched for in every service.
func TestLongQuestionsAreRefused(t *testing.T) {
	r := newRig(t, nil, Options{})
	r.apply()
	for _, path := range []string{"/api/services", "/api/flow", "/api/service"} {
		w := r.request(path + "?q=" + strings.Repeat("a+", 100_000))
		assert.Equal(t, http.StatusRequestURITooLong, w.Code, path)
		assert.Less(t, w.Body.Len(), 1000, path)
	}
}

// Everything that a browser loads is embedded, and there is nothing inline that the policy would forbid.
func TestThePageIsSelfContained(t *testing.T) {
	r := newRig(t, nil, Options{})
	total := 0
	for path, contentType := range map[string]string{
		"/": "text/html; charset=utf-8", "/base.js": "text/javascript; charset=utf-8",
		"/overview.js": "text/javascript; charset=utf-8", "/services.js": "text/javascript; charset=utf-8",
		"/picture.js": "text/javascript; charset=utf-8", "/packet.js": "text/javascript; charset=utf-8",
		"/page.js": "text/javascript; charset=utf-8", "/page.css": "text/css; charset=utf-8", "/icon.svg": "image/svg+xml",
	} {
		w := r.request(path)
		require.Equal(t, http.StatusOK, w.Code, path)
		assert.Equal(t, contentType, w.Header().Get("Content-Type"))
		text := w.Body.String()
		total += len(text)
		for _, forbidden := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
			" onclick", " style=", "https://", "//cdn"} {
			assert.NotContains(t, text, forbidden, path)
		}
		without := strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "") // a name, not an address
		assert.NotContains(t, without, "http://", path)
	}
	assert.Less(t, total, 64<<10, "what a browser loads first")
}

// JSON may contain any name, which must not end the script of a page that embeds it.
func TestJSONIsEscaped(t *testing.T) {
	r := newRig(t, nil, Options{})
	s := service("web", 1, false)
	s.Name.Name = "</script><b>\u2028\n\ndata: {}"
	r.sink.SetService(s)
	r.apply()
	for _, path := range []string{"/api/services", "/api/state"} {
		assert.NotContains(t, r.request(path).Body.String(), "<b>", path)
	}
	assert.Equal(t, s.Name, get[serviceList](r, "/api/services", "q", "</script>").Services[0].Name)
}

// browser follows the events of a page.
type browser struct {
	t      *testing.T
	body   *bufio.Reader
	cancel func()
}

func follow(t *testing.T, url string) *browser {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/events", nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(q)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	return &browser{t, bufio.NewReader(response.Body), cancel}
}

func (b *browser) next() *pageState {
	b.t.Helper()
	line, err := b.body.ReadBytes('\n')
	require.NoError(b.t, err)
	data, ok := bytes.CutPrefix(line, []byte("data: "))
	require.True(b.t, ok, "%s", line)
	_, err = b.body.ReadBytes('\n')
	require.NoError(b.t, err)
	s := &pageState{}
	require.NoError(b.t, json.Unmarshal(data, s))
	return s
}

func TestBrowsersReceiveChanges(t *testing.T) {
	r := newRig(t, nil, Options{minInterval: time.Nanosecond})
	web := service("web", 1, false)
	r.sink.SetService(web)
	r.sink.SetService(service("other", 2, false))
	r.apply()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close) // after the browsers'
	b := follow(t, server.URL)
	first := b.next()
	assert.True(t, first.All && first.Listed)
	assert.Equal(t, 2, first.Services)
	assert.Len(t, first.Events, 1)

	r.sink.SetEndpoint(endpoint(web, "10.244.1.5:8080", cluster))
	r.apply()
	second := b.next()
	assert.False(t, second.All || second.Listed)
	assert.Equal(t, []model.ServiceName{web.Name}, second.Changed)
	require.Len(t, second.Events, 1)
	assert.Equal(t, "now used: 10.244.1.5 (8080/TCP)", second.Events[0].Text)

	r.sink.DeleteService(web.Name)
	r.apply()
	third := b.next()
	assert.True(t, third.Listed)
	assert.Equal(t, 1, third.Services)
	b.cancel()
}

// A browser that does not read does not delay anything. When it reads again, it gets the sum of the changes that it
// missed, and no more than it can use.
func TestASlowBrowserHoldsNothingUp(t *testing.T) {
	r := newRig(t, nil, Options{minInterval: time.Nanosecond})
	r.apply()
	reached, goOn := make(chan struct{}), make(chan struct{})
	w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), reached: reached, goOn: goOn}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/events", nil))
	}()
	<-reached // with the first message, and stuck there
	for i := range 1000 {
		r.sink.SetService(service(fmt.Sprintf("s%d", i), i, false))
		r.apply()
	}
	goOn <- struct{}{}
	<-reached // with the second message
	goOn <- struct{}{}
	cancel()
	<-ended
	messages := strings.Split(strings.TrimSpace(w.Body.String()), "\n\n")
	var second pageState
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(messages[1], "data: ")), &second))
	assert.Equal(t, 1000, second.Services, "one message for all that was missed")
	assert.Len(t, second.Changed, maxChangedNamed)
	assert.True(t, second.All && second.Listed)
	assert.Len(t, second.Events, maxEventsSent)
}

// slowWriter lets one message through each time that the test allows it.
type slowWriter struct {
	*httptest.ResponseRecorder
	reached, goOn chan struct{}
}

func (w *slowWriter) Write(b []byte) (int, error) {
	w.reached <- struct{}{}
	<-w.goOn
	return w.ResponseRecorder.Write(b)
}

func TestTooManyBrowsersAreRefused(t *testing.T) {
	r := newRig(t, nil, Options{maxBrowsers: 1})
	r.apply()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close) // after the browsers'
	b := follow(t, server.URL)
	b.next()
	assert.Equal(t, http.StatusServiceUnavailable, r.request("/api/events").Code)
	b.cancel()
	require.Eventually(t, func() bool { // the server notices when it notices
		return len(r.browsers) == 0
	}, time.Minute, time.Millisecond)
	follow(t, server.URL).next()
}

// A browser whose machine has gone does not keep its place for ever: what cannot be written ends its request.
func TestABrowserThatIsGoneIsForgotten(t *testing.T) {
	r := newRig(t, nil, Options{minInterval: time.Nanosecond})
	r.apply()
	w := &brokenWriter{httptest.NewRecorder()}
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/api/events", nil)) // returns
	assert.Empty(t, r.browsers)
}

// A browser that does not read its answer does not hold a goroutine for ever, in whatever server the page is mounted.
func TestEveryWriteHasADeadline(t *testing.T) {
	r := newRig(t, nil, Options{})
	r.sink.SetService(service("web", 1, false))
	r.apply()
	for path, code := range map[string]int{"/": 200, "/page.js": 200, "/api/state": 200, "/api/services": 200,
		"/api/service?namespace=shop&name=web": 200, "/api/flow?q=node+->+10.96.0.1:80": 200, "/api/flow?q=x": 400,
		"/api/service?name=x": 404, "/api/events": 200, "/x": 404} {
		w := &timedRecorder{ResponseRecorder: httptest.NewRecorder()}
		r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)) // ends: the first write fails
		assert.Equal(t, code, w.Code, path)
		assert.Equal(t, 1, w.timed, path)
		assert.Zero(t, w.untimed, path)
	}
}

// timedRecorder is a connection whose other side does not read. It counts the writes with and without a deadline.
type timedRecorder struct {
	*httptest.ResponseRecorder
	deadline       time.Time
	timed, untimed int
}

func (w *timedRecorder) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *timedRecorder) Write([]byte) (int, error) {
	if w.deadline.IsZero() {
		w.untimed++
	} else {
		w.timed++
	}
	w.deadline = time.Time{}
	return 0, os.ErrDeadlineExceeded
}

type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, net.ErrClosed }

// Many clients ask expensive questions: the page works on one answer at a time, and on none for clients that have gone.
func TestExpensiveQuestionsAreAnsweredOneAtATime(t *testing.T) {
	var asked atomic.Int32
	entered, release := make(chan struct{}), make(chan struct{})
	r := newRig(t, nil, Options{Config: func() oracle.Config {
		if asked.Add(1) == 1 {
			close(entered)
			<-release
		}
		return oracle.Config{}
	}})
	r.sink.SetService(service("web", 1, false))
	r.apply()
	first := make(chan int)
	const flow = "/api/flow?q=node+->+10.96.0.1:80"
	go func() { first <- r.request(flow).Code }()
	<-entered
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, path := range []string{flow, "/api/services"} {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequestWithContext(gone, http.MethodGet, "http://localhost"+path, nil))
		assert.Zero(t, w.Body.Len(), path)
	}
	assert.EqualValues(t, 1, asked.Load())
	close(release)
	assert.Equal(t, http.StatusOK, <-first)
	assert.Equal(t, http.StatusOK, r.request(flow).Code)
}
