package dropin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/node/page"
)

// healthzHandler returns the handler for healthzBindAddress (S39a).
func healthzHandler(p *health.Proxy) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", p.Healthz())
	mux.Handle("/livez", p.Livez())
	return mux
}

// metricsHandler returns the handler for metricsBindAddress (S39a), with the page if there is one. /configz returns
// version v1alpha1, for programs that read kube-proxy's.
func metricsHandler(s *settings, g prometheus.Gatherer, p *page.Page) (http.Handler, error) {
	old, _ := config.ToV1alpha1(s.KubeProxyConfiguration)
	configz, err := json.Marshal(map[string]any{v1alpha2.GroupName: old})
	if err != nil {
		return nil, fmt.Errorf("configz: %w", err)
	}
	mux := http.NewServeMux()
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode"} // for /statusz
	mux.Handle("/metrics", scrapes(s.gates.Enabled(config.NativeHistograms), g))
	mux.Handle("/healthz", text("text/plain; charset=utf-8", "ok"))
	mux.Handle("/proxyMode", text("text/plain; charset=utf-8", string(s.Mode)))
	mux.Handle("/configz", text("application/json", string(configz)))
	if p != nil && s.PageBindAddress == "" {
		mux.Handle("/page/", http.StripPrefix("/page", p))
		paths = append(paths, "/page")
	}
	if s.EnableProfiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
		if s.OwnProcess {
			mux.HandleFunc("PUT /debug/flags/v", setVerbosity)
		}
		paths = append(paths, "/debug")
	}
	if s.gates.Enabled(config.ComponentFlagz) {
		mux.Handle("/flagz", flagzHandler(s.Flags))
		paths = append(paths, "/flagz")
	}
	if s.gates.Enabled(config.ComponentStatusz) {
		slices.Sort(paths)
		mux.Handle("/statusz", statuszHandler(time.Now(), paths))
	}
	return mux, nil
}

// scrapes returns the handler for /metrics. Only the protobuf format has native histograms: if they are off, the answer
// is always text.
func scrapes(native bool, g prometheus.Gatherer) http.Handler {
	handler := promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	if native {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Accept")
		handler.ServeHTTP(w, r)
	})
}

// setVerbosity sets --v to the number in the body, until the program exits:
//
//	curl -X PUT -d 4 http://127.0.0.1:10249/debug/flags/v
func setVerbosity(w http.ResponseWriter, r *http.Request) {
	level, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16))
	answer := ""
	if err == nil {
		answer, err = logs.GlogSetter(strings.TrimSpace(string(level)))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	klog.FromContext(r.Context()).Info("Changed the log verbosity", "v", string(level))
	text("text/plain; charset=utf-8", answer).ServeHTTP(w, r)
}

// text returns a handler with a constant answer.
func text(contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, body) // the client is gone
	})
}

// server is an HTTP server on one address.
type server struct {
	name, address string
	handler       http.Handler
	listen        func(ctx context.Context, network, address string) (net.Listener, error)
	// Only the health server is for everyone who can reach the node. Its answers are small. Those of the metrics server,
	// such as profiles and the page's events, may take minutes.
	forEverybody bool
	hardFail     bool   // exit if the address cannot be bound
	failure      string // reason of the Event in that case
}

// newServers returns the configured servers.
func newServers(s *settings, proxy *health.Proxy, g prometheus.Gatherer, p *page.Page) ([]*server, error) {
	metrics, err := metricsHandler(s, g, p)
	if err != nil {
		return nil, err
	}
	var servers []*server
	if !s.NoHealthz {
		servers = append(servers, &server{
			name: "health", address: s.HealthzBindAddress, handler: healthzHandler(proxy), forEverybody: true,
			listen: s.machine.listen, hardFail: *s.BindAddressHardFail, failure: "FailedToStartProxierHealthcheck",
		})
	}
	if !s.NoMetrics {
		servers = append(servers, &server{
			name: "metrics", address: s.MetricsBindAddress, handler: metrics,
			listen: s.machine.listen, hardFail: *s.BindAddressHardFail, failure: "FailedToStartMetricServer",
		})
	}
	if p != nil && s.PageBindAddress != "" {
		mux := http.NewServeMux()
		mux.Handle("/page/", http.StripPrefix("/page", p))
		mux.Handle("/{$}", http.RedirectHandler("/page/", http.StatusFound))
		servers = append(servers, &server{
			name: "page", address: s.PageBindAddress, handler: mux,
			listen: s.machine.listen, hardFail: *s.BindAddressHardFail, failure: "FailedToStartPageServer",
		})
	}
	return servers, nil
}

// Limits for idle and slow connections, so that clients cannot exhaust the process's file descriptors.
const (
	requestTimeout = 10 * time.Second
	idleTimeout    = 2 * time.Minute
)

// bindRetry is the pause before the next attempt to bind an address.
const bindRetry = 5 * time.Second

// run serves until ctx ends; then it returns nil. It returns an error only if hardFail is set.
func (s *server) run(ctx context.Context) error {
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		err = fmt.Errorf("%s server on %s: %w", s.name, s.address, err)
		if errors.Is(err, syscall.EADDRINUSE) { // normal for a moment while the old process exits
			err = fmt.Errorf("%w; if this goes on: is another kube-proxy running on this node?", err)
		}
		if s.hardFail {
			return err
		}
		klog.FromContext(ctx).Error(err, "Cannot listen; trying again", "retryIn", bindRetry)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(bindRetry):
		}
	}
}

func (s *server) serve(ctx context.Context) error {
	listener, err := s.listen(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: requestTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	if s.forEverybody {
		server.ReadTimeout, server.WriteTimeout = requestTimeout, requestTimeout
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}
