package page

import (
	"cmp"
	"net/http"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// Options of a [Page]. The zero value is usable.
type Options struct {
	// Health is the health of the proxy: when changes arrived and were applied.
	Health *health.Proxy
	// Config returns the configuration of the backend and its node, on which answers about packets depend. Nil: the
	// zero [oracle.Config].
	Config func() oracle.Config
	// Hosts are names, besides localhost, by which browsers may request the page.
	Hosts []string

	// Tests set other values than the defaults.
	maxBrowsers int           // that may follow the page at a time
	minInterval time.Duration // between two messages to a browser
}

// Explainer explains why endpoints are or are not used. kubeproxy.LocalFeed implements it.
type Explainer interface {
	// Explain returns what is known about a service, and false if nothing is. It may be called from any goroutine.
	Explain(model.ServiceName) (*localstate.Explanation, bool)
}

// Page is an http.Handler that shows what a proxy does. Its methods may be called from any goroutine.
type Page struct {
	opts      Options
	handler   http.Handler
	questions chan struct{} // those being answered
	browsers  chan struct{} // those that follow the page
	// One question at a time holds each of these, see withSlot: for its own work, and for what it asks the backend.
	working, describing chan struct{}

	mu        sync.Mutex // guards the rest, and is never held while something waits
	explainer Explainer
	backend   sink.Sink
	snapshot  *sink.Snapshot // of the last Sync
	sync      *syncResult    // nil before the first one
	problems  problems
	shown     problems // a copy that does not change
	told      uint64   // how often the backend reported something new about a service that did not change
	totals    totals
	busy      busy
	busiest   []busyService // nil: not known yet
	applied   model.PerFamily[appliedState]
	log       log
	updated   chan struct{} // closed at the next Sync
}

// syncResult is the result of the last Sync.
type syncResult struct {
	At       time.Time `json:"at"`
	Duration string    `json:"duration"`
	Error    string    `json:"error,omitempty"` // shortened
	// Failed: it failed for a whole family, and not only for some service ports.
	Failed bool `json:"failed,omitempty"`
	failed model.FamilySet
}

// appliedState is what a family's last Sync without an error of the whole family has applied.
type appliedState struct {
	snapshot *sink.Snapshot // nil: nothing yet
	at       time.Time
}

// New returns a page that shows nothing yet.
func New(opts Options) *Page {
	opts.minInterval = cmp.Or(opts.minInterval, 500*time.Millisecond)
	if opts.Config == nil {
		opts.Config = func() oracle.Config { return oracle.Config{} }
	}
	p := &Page{opts: opts, snapshot: &sink.Snapshot{}, updated: make(chan struct{}),
		questions: make(chan struct{}, maxQuestions),
		browsers:  make(chan struct{}, cmp.Or(opts.maxBrowsers, 32)),
		working:   make(chan struct{}, 1), describing: make(chan struct{}, 1),
		problems: newProblems(), shown: newProblems()}
	p.handler = p.routes()
	return p
}

// ServeHTTP implements http.Handler. Mount it with http.StripPrefix, and a path that ends in a slash.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// SetExplainer makes the page show why endpoints are not used.
func (p *Page) SetExplainer(e Explainer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.explainer = e
}

// view is what the page shows at a moment.
type view struct {
	snapshot  *sink.Snapshot
	explainer Explainer
	backend   sink.Sink
	sync      *syncResult
	problems  problems
	told      uint64
	totals    totals
	busiest   []busyService // never written to
	busySince time.Time
	applied   model.PerFamily[appliedState]
	events    []event     // never written to
	syncs     []syncPoint // never written to
	updated   <-chan struct{}
}

func (p *Page) view() view {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busiest == nil {
		p.busiest = p.busy.busiest()
	}
	return view{p.snapshot, p.explainer, p.backend, p.sync, p.shown, p.told, p.totals, p.busiest, p.busy.began,
		p.applied, p.log.events(), p.log.syncs.list(), p.updated}
}
