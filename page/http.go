package page

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// assets are all files that a browser loads.
//
//go:embed assets
var assets embed.FS

// contentSecurityPolicy allows only the embedded files, from the origin of the page: no inline script or style, no
// eval, and no conversion of text to HTML.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// routes returns the handler.
func (p *Page) routes() http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]struct{ name, contentType string }{
		"GET /{$}":      {"index.html", "text/html; charset=utf-8"},
		"GET /page.js":  {"page.js", "text/javascript; charset=utf-8"},
		"GET /page.css": {"page.css", "text/css; charset=utf-8"},
		"GET /icon.svg": {"icon.svg", "image/svg+xml"},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			text, err := assets.ReadFile("assets/" + file.name)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", file.contentType)
			w.Header().Set("Cache-Control", "no-cache")
			_, _ = w.Write(text) // the client is gone
		})
	}
	mux.HandleFunc("GET /api/state", func(w http.ResponseWriter, _ *http.Request) {
		v := p.view()
		writeJSON(w, p.state(&v, 0))
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
				": ask for its IP address, for localhost, or for one of page.Options.Hosts", http.StatusForbidden)
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
	if inTurn(r.Context(), p.turn, func() { v := p.view(); found = v.services(q) }) {
		writeJSON(w, found)
	}
}

// maxQuestions bounds how many questions the page answers at a time. It is far above what people ask, and bounds the
// memory of answers that wait for their turn or for a slow browser.
const maxQuestions = 64

// limited refuses requests while there are as many as places has room for.
func limited(places chan struct{}, reason string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			answer(w, r)
		default:
			http.Error(w, fmt.Sprintf("%d %s", cap(places), reason), http.StatusServiceUnavailable)
		}
	}
}

// inTurn runs work whose cost follows the size of the cluster or of a service, one call at a time, so that all requests
// together take at most one processor. It returns false if ctx ends before it is the call's turn.
func inTurn(ctx context.Context, turn chan struct{}, work func()) bool {
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-turn }()
	work()
	return true
}

func (p *Page) serveService(w http.ResponseWriter, r *http.Request) {
	name := model.ServiceName{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")}
	var v view
	var s *serviceDetails
	if !inTurn(r.Context(), p.turn, func() { v = p.view(); s = v.service(name) }) {
		return
	}
	if s == nil {
		http.Error(w, "service "+strconv.Quote(name.String())+" is not known", http.StatusNotFound)
		return
	}
	// The backend may have to finish a Sync first. That must not hold up questions that do not need it.
	if inTurn(r.Context(), p.describing, func() { v.describe(r.Context(), s) }) {
		writeJSON(w, s)
	}
}

func (p *Page) serveFlow(w http.ResponseWriter, r *http.Request) {
	var answer *flowAnswer
	var status int
	var err error
	switch {
	case !inTurn(r.Context(), p.turn, func() { answer, status, err = p.flow(r.FormValue("q")) }):
	case err != nil:
		http.Error(w, err.Error(), status)
	default:
		writeJSON(w, answer)
	}
}

// flowAnswer is the oracle's answer with the first maxEndpointsShown endpoints of each outcome.
type flowAnswer struct {
	*oracle.Answer
	// More has the numbers of endpoints that are left out, of the outcome and of each alternative; nil if none are.
	More []int `json:"more,omitempty"`
}

func newFlowAnswer(a *oracle.Answer) *flowAnswer {
	out := &flowAnswer{Answer: a, More: make([]int, 1+len(a.Outcome.AlsoAllowed))}
	outcomes := []*oracle.Outcome{&a.Outcome}
	for i := range a.Outcome.AlsoAllowed {
		outcomes = append(outcomes, &a.Outcome.AlsoAllowed[i])
	}
	any := false
	for i, o := range outcomes {
		if more := len(o.Endpoints) - maxEndpointsShown; more > 0 {
			o.Endpoints, out.More[i], any = o.Endpoints[:maxEndpointsShown], more, true
		}
	}
	if !any {
		out.More = nil
	}
	return out
}

// flow returns what happens to a packet, or an error with its HTTP status.
func (p *Page) flow(question string) (*flowAnswer, int, error) {
	v := p.view()
	if v.sync == nil {
		return nil, http.StatusServiceUnavailable, errors.New("nothing has been applied yet")
	}
	o, err := oracle.OfSnapshot(v.snapshot, p.opts.Config())
	if err != nil {
		return nil, http.StatusInternalServerError, err
	}
	answer, err := o.Ask(question)
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	return newFlowAnswer(answer), http.StatusOK, nil
}
