package watch_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// tunnel is a proxy on loopback between clients and an API server. It reads the streams of watches, and drops bookmarks
// that end a streamed list.
type tunnel struct {
	*apiserver.Server
	config *rest.Config // of clients that go through the tunnel
	ends   error        // with which it ends the stream in place of the bookmark; nil: the stream goes on

	mu      sync.Mutex
	dropped map[string]int // bookmarks, by resource
	changed chan struct{}
}

// resources are what a source watches.
func resources() []string { return []string{"services", "endpointslices", "servicecidrs", "nodes"} }

func newTunnel(t *testing.T, http2 bool, contentType string, ends error) *tunnel {
	server, err := apiserver.New(
		kube.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80).Build(),
		kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.5").OnNode("n1").Build(),
		kube.Node("n1").InternalIP("192.0.2.1").Build(),
		kube.ServiceCIDR("kubernetes", "10.96.0.0/16"),
	)
	require.NoError(t, err)
	behind := httptest.NewServer(server)
	t.Cleanup(behind.Close)
	target, err := url.Parse(behind.URL)
	require.NoError(t, err)
	u := &tunnel{Server: server, ends: ends, dropped: map[string]int{}, changed: make(chan struct{}, 1000)}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: u.filter,
	})
	proxy.EnableHTTP2 = http2
	proxy.StartTLS()
	t.Cleanup(proxy.Close)
	t.Cleanup(proxy.CloseClientConnections) // before Close waits for them
	u.config = &rest.Config{Host: proxy.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	u.config.ContentType = contentType
	if !http2 {
		u.config.NextProtos = []string{"http/1.1"}
	}
	return u
}

// filter replaces the body of a streamed list.
func (u *tunnel) filter(r *http.Response) error {
	if r.Request.URL.Query().Get("sendInitialEvents") != "true" || r.StatusCode != http.StatusOK {
		return nil
	}
	next := nextLine
	if strings.Contains(r.Header.Get("Content-Type"), "protobuf") {
		next = nextFrame
	}
	body, pipe := r.Body, (*io.PipeWriter)(nil)
	r.Body, pipe = pipedBody(body)
	go func() {
		in := bufio.NewReader(body)
		for {
			event, err := next(in)
			end := bytes.Contains(event, []byte(metav1.InitialEventsAnnotationKey))
			if end {
				u.drop(path.Base(r.Request.URL.Path))
			}
			switch {
			case err == nil && end && u.ends != nil:
				err = u.ends
			case err == nil && !end:
				_, err = pipe.Write(event)
			}
			if err != nil {
				_ = pipe.CloseWithError(err)
				_ = body.Close()
				return
			}
		}
	}()
	return nil
}

// pipedBody returns a body and its writer. Closing the body closes another one, too.
func pipedBody(behind io.Closer) (io.ReadCloser, *io.PipeWriter) {
	r, w := io.Pipe()
	return struct {
		io.Reader
		io.Closer
	}{r, closer(func() error { _ = behind.Close(); return r.Close() })}, w
}

type closer func() error

func (c closer) Close() error { return c() }

// nextLine returns an event in JSON.
func nextLine(r *bufio.Reader) ([]byte, error) { return r.ReadBytes('\n') }

// nextFrame returns an event in protobuf, with its length in front.
func nextFrame(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(4)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, 4+binary.BigEndian.Uint32(head))
	_, err = io.ReadFull(r, frame)
	return frame, err
}

func (u *tunnel) drop(resource string) {
	u.mu.Lock()
	u.dropped[resource]++
	u.mu.Unlock()
	u.changed <- struct{}{}
}

// waitDropped waits until bookmarks of all resources have been dropped.
func (u *tunnel) waitDropped(times int) {
	for {
		u.mu.Lock()
		all := true
		for _, r := range resources() {
			all = all && u.dropped[r] >= times
		}
		u.mu.Unlock()
		if all {
			return
		}
		<-u.changed
	}
}

// logs are the lines of a log.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) context(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), funcr.New(func(_, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		fmt.Fprintln(&l.text, line)
	}, funcr.Options{}))
}

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// timers fire when the test says so, instead of after some time.
type timers struct {
	mu  sync.Mutex
	all []*timer
}

type timer struct {
	*timers
	f    func()
	runs bool
}

func (s *timers) afterFunc(_ time.Duration, f func()) interface {
	Stop() bool
	Reset(d time.Duration) bool
} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, &timer{s, f, true})
	return s.all[len(s.all)-1]
}

func (t *timer) Stop() bool               { return t.set(false) }
func (t *timer) Reset(time.Duration) bool { return t.set(true) }

func (t *timer) set(runs bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.runs
	t.runs = runs
	return before
}

// running returns how many run.
func (s *timers) running() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all {
		if t.runs {
			n++
		}
	}
	return n
}

// fire calls those that run.
func (s *timers) fire() {
	s.mu.Lock()
	var due []func()
	for _, t := range s.all {
		if t.runs {
			t.runs, due = false, append(due, t.f)
		}
	}
	s.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// reader is a program that reads from a source.
type reader struct {
	run     func(ctx context.Context) error
	ready   func() bool // everything has been listed
	sees    func(services int) bool
	metrics string // prefix
}

// proxyOf is a proxy that reads from a source.
func proxyOf(_ *testing.T, _ context.Context, source watch.Source, registry prometheus.Registerer) *reader {
	var services atomic.Int64
	services.Store(-1)
	rules := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		services.Store(int64(s.NumServices()))
		return nil
	})
	opts := kubeproxy.Options{Sink: rules, Metrics: registry,
		Feed: &kubeproxy.LocalFeed{Source: source, State: localstate.Options{NodeName: "n1"}}}
	return &reader{
		run:     func(ctx context.Context) error { return kubeproxy.Run(ctx, opts) },
		ready:   func() bool { return services.Load() >= 0 },
		sees:    func(n int) bool { return services.Load() == int64(n) },
		metrics: "kubeproxy_",
	}
}

// brainOf is a brain that reads from a source.
func brainOf(t *testing.T, ctx context.Context, source watch.Source, registry prometheus.Registerer) *reader {
	server, err := brain.New(ctx, brain.Options{Source: source, Metrics: registry})
	require.NoError(t, err)
	return &reader{run: server.Run, ready: func() bool { return server.Ready() == nil },
		sees: func(int) bool { return true }, metrics: "kubeproxy_remote_"}
}

// clientsetOf is a Clientset behind the tunnel.
func clientsetOf(t *testing.T, _ context.Context, u *tunnel, quiet *timers) watch.Source {
	client, err := kubernetes.NewForConfig(u.config)
	require.NoError(t, err)
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	require.NoError(t, err)
	source.SetAfterFunc(quiet.afterFunc)
	return source
}

// informersOf are a program's own informers behind the tunnel, whose client has a ListFallback.
func informersOf(t *testing.T, ctx context.Context, u *tunnel, quiet *timers) watch.Source {
	config := rest.CopyConfig(u.config)
	config.Wrap(watch.ListFallbackAfter(quiet.afterFunc))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return logged{next, klog.FromContext(ctx)} })
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	factory := informers.NewSharedInformerFactory(client, 0)
	source, err := watch.NewInformers(factory, watch.InformersOptions{})
	require.NoError(t, err)
	stop := make(chan struct{})
	factory.Start(stop)
	t.Cleanup(factory.Shutdown)
	t.Cleanup(func() { close(stop) })
	return source
}

// logged gives requests a logger, which informers that a factory has started do not.
type logged struct {
	next   http.RoundTripper
	logger klog.Logger
}

func (l logged) RoundTrip(r *http.Request) (*http.Response, error) {
	return l.next.RoundTrip(r.WithContext(klog.NewContext(r.Context(), l.logger)))
}

// A tunnel over real connections drops the bookmark that ends a streamed list, or ends the stream: a proxy and a brain
// still get everything, and later changes. (After a broken HTTP/2 stream client-go itself lists without streaming.)
func TestATunnelThatDropsTheEndOfLists(t *testing.T) {
	const protobuf, jsonType = "application/vnd.kubernetes.protobuf", "application/json"
	for name, test := range map[string]struct {
		http2       bool
		contentType string
		ends        error
		incomplete  int // resources
	}{
		"HTTP 2, protobuf":               {http2: true, contentType: protobuf, incomplete: 4},
		"HTTP 1.1, protobuf":             {contentType: protobuf, incomplete: 4},
		"HTTP 1.1, JSON":                 {contentType: jsonType, incomplete: 4},
		"HTTP 2, which ends streams":     {http2: true, contentType: protobuf, ends: io.EOF, incomplete: 4},
		"HTTP 1.1, which ends streams":   {contentType: protobuf, ends: io.EOF, incomplete: 4},
		"HTTP 2, which breaks streams":   {http2: true, contentType: protobuf, ends: io.ErrUnexpectedEOF},
		"HTTP 1.1, which breaks streams": {contentType: protobuf, ends: io.ErrUnexpectedEOF, incomplete: 4},
	} {
		for who, program := range map[string]struct {
			source func(*testing.T, context.Context, *tunnel, *timers) watch.Source
			of     func(*testing.T, context.Context, watch.Source, prometheus.Registerer) *reader
			counts bool // at once; Informers count what they have waited for
		}{
			"a proxy":                {clientsetOf, proxyOf, true},
			"a brain":                {clientsetOf, brainOf, true},
			"a proxy with informers": {informersOf, proxyOf, false},
			"a brain with informers": {informersOf, brainOf, false},
		} {
			t.Run(who+", "+name, func(t *testing.T) {
				u := newTunnel(t, test.http2, test.contentType, test.ends)
				var quiet timers
				var log logs
				ctx, cancel := context.WithCancel(log.context(t))
				source := program.source(t, ctx, u, &quiet)
				registry := prometheus.NewRegistry()
				r := program.of(t, ctx, source, registry)
				ended := make(chan error, 1)
				go func() { ended <- r.run(ctx) }()
				u.waitDropped(1)
				if test.ends == nil {
					require.Eventually(t, func() bool { return quiet.running() == 4 }, time.Minute, time.Millisecond)
					assert.False(t, r.ready(), "before the lists are given up")
					quiet.fire()
				}
				require.Eventually(t, r.ready, time.Minute, time.Millisecond)
				assert.Equal(t, test.incomplete, log.count("A streamed list does not end"))
				if program.counts {
					n, err := testutil.GatherAndCount(registry, r.metrics+"incomplete_lists_total")
					require.NoError(t, err)
					assert.Equal(t, test.incomplete, n, "resources that are counted")
				}
				require.NoError(t, u.Set(kube.Service("default/late").ClusterIP("10.96.0.2").Port("http", 80).Build()))
				require.Eventually(t, func() bool { return r.sees(2) }, time.Minute, time.Millisecond)
				cancel()
				require.NoError(t, <-ended)
			})
		}
	}
}

// Without a ListFallback the program's own informers wait forever: the source can only say so, and which ones.
func TestInformersBehindATunnelThatDropsTheEndOfLists(t *testing.T) {
	u := newTunnel(t, true, "application/vnd.kubernetes.protobuf", nil)
	client, err := kubernetes.NewForConfig(u.config)
	require.NoError(t, err)
	factory := informers.NewSharedInformerFactory(client, 0)
	source, err := watch.NewInformers(factory, watch.InformersOptions{})
	require.NoError(t, err)
	source.SetHint(time.Nanosecond)
	stop := make(chan struct{})
	factory.Start(stop)
	defer factory.Shutdown()
	defer close(stop)
	u.waitDropped(1)
	var log logs
	ctx, cancel := context.WithCancel(log.context(t))
	registry := prometheus.NewRegistry()
	r := proxyOf(t, ctx, source, registry)
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	require.Eventually(t, func() bool {
		n, err := testutil.GatherAndCount(registry, "kubeproxy_incomplete_lists_total")
		return err == nil && n == 3
	}, time.Minute, time.Millisecond, "all but ServiceCIDRs, which are not waited for")
	assert.Equal(t, 1, log.count("drops the end of streamed lists: wrap the client's transport with watch.ListFallback"))
	assert.Equal(t, 1, log.count(`"resources"=["endpointslices.discovery.k8s.io" "nodes" "services"]`))
	assert.False(t, r.ready())
	cancel()
	require.NoError(t, <-ended)
}
