package page

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/semantics"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// assets are all files that a browser loads.
//
//go:embed assets
var assets embed.FS

// contentSecurityPolicy allows only the embedded files, from the origin of the page: no inline script or style, no
// eval, and no conversion of text to HTML.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// contentTypes are those of the assets, by extension.
func contentTypes() map[string]string {
	return map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
}

// routes returns the handler.
func (p *Page) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{file}", serveAsset)
	mux.HandleFunc("GET /{$}", serveAsset)
	mux.HandleFunc("GET /rules.json", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, semantics.Plain()) })
	mux.HandleFunc("GET /api/state", func(w http.ResponseWriter, _ *http.Request) {
		v := p.view()
		writeJSON(w, p.state(&v, 0, 0))
	})
	question := func(answer http.HandlerFunc) http.HandlerFunc {
		return limited(p.questions, "questions are already being answered", answer)
	}
	mux.HandleFunc("GET /api/services", question(p.serveServices))
	mux.HandleFunc("GET /api/service", question(p.serveService))
	mux.HandleFunc("GET /api/flow", question(p.serveFlow))
	mux.HandleFunc("GET /api/explain", question(p.serveExplanation))
	mux.HandleFunc("GET /api/events", limited(p.browsers, "browsers already follow this page", p.serveEvents))
	return p.guard(mux)
}

// serveAsset serves an embedded file.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	name := cmp.Or(r.PathValue("file"), "index.html")
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", contentTypes()[path.Ext(name)])
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(text) // the client is gone
}

// guard refuses requests that the page itself never makes, and sets security headers.
func (p *Page) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w = timedWriter{w}
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !p.mayAskFor(r.Host):
			http.Error(w, "this page is not served under the name "+strconv.Quote(r.Host)+
				": request it by IP address, as localhost, or by one of page.Options.Hosts", http.StatusForbidden)
		case fromElsewhere(r):
			http.Error(w, "requests from other sites are refused", http.StatusForbidden)
		case len(r.URL.RawQuery) > maxQueryBytes:
			http.Error(w, fmt.Sprintf("the question is longer than %d bytes", maxQueryBytes),
				http.StatusRequestURITooLong)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// timedWriter bounds how long each write may take, so that a browser that does not read its answer holds up nothing,
// whatever the timeouts of the server are. The server takes the deadline back after each request.
type timedWriter struct{ http.ResponseWriter }

func (w timedWriter) Write(text []byte) (int, error) {
	// An error means that the writer of some middleware does not support deadlines.
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.ResponseWriter.Write(text)
}

// Unwrap is for http.ResponseController.
func (w timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// writeTimeout is how long a browser may take for an answer, or for one message.
const writeTimeout = 15 * time.Second

// maxQueryBytes bounds the query of a request: every word of a search is compared with every service.
const maxQueryBytes = 4096

// mayAskFor reports whether a browser may request the page by this host. Every IP address is allowed: another site can
// point its own name at the proxy, but not an address.
func (p *Page) mayAskFor(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(p.opts.Hosts, func(name string) bool { return strings.EqualFold(name, host) })
}

// fromElsewhere reports whether a browser sends the request on behalf of another origin. Following a link and typing
// the address are allowed.
func fromElsewhere(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
	}
	origin := r.Header.Get("Origin") // of browsers that do not know Sec-Fetch-Site
	return origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host
}

func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // the client is gone
}

func (p *Page) serveServices(w http.ResponseWriter, r *http.Request) {
	number := func(name string) int {
		n, _ := strconv.Atoi(r.FormValue(name)) // 0 is the default
		return n
	}
	q := newQuery(r.FormValue("q"), r.FormValue("problems") == "true", number("offset"), number("limit"))
	var found *serviceList
	if withSlot(r.Context(), p.working, func() { v := p.view(); found = v.services(q) }) {
		writeJSON(w, found)
	}
}

// maxQuestions bounds how many questions the page answers at a time. It is far above what people ask, and bounds the
// memory of answers that wait for their slot or for a slow browser.
const maxQuestions = 64

// limited refuses requests while there are as many as there are slots.
func limited(slots chan struct{}, reason string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			answer(w, r)
		default:
			http.Error(w, fmt.Sprintf("%d %s", cap(slots), reason), http.StatusServiceUnavailable)
		}
	}
}

// withSlot runs work whose cost follows the size of the cluster or of a service, one call at a time, so that all
// requests together take at most one processor. It returns false if ctx ends before the slot is free.
func withSlot(ctx context.Context, slot chan struct{}, work func()) bool {
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-slot }()
	work()
	return true
}

func (p *Page) serveService(w http.ResponseWriter, r *http.Request) {
	name := model.ServiceName{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")}
	var v view
	var s *serviceDetails
	if !withSlot(r.Context(), p.working, func() { v = p.view(); s = v.service(name) }) {
		return
	}
	if s == nil {
		http.Error(w, "service "+strconv.Quote(name.String())+" is not known", http.StatusNotFound)
		return
	}
	// The backend may have to finish a Sync first. That must not hold up questions that do not need it.
	if withSlot(r.Context(), p.describing, func() { v.describe(r.Context(), s) }) {
		writeJSON(w, s)
	}
}
