package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Options say where a [Feed] gets the state from. Targets are required; everything else has a default.
type Options struct {
	// Targets are the servers, which are equivalent, and are tried in random order. Each is one of
	//
	//	ADDRESS:PORT
	//	unix:///PATH
	//	file:///PATH           a file with targets, one in a line; or a directory of such files
	//	dns:///NAME:PORT       a name, resolved again for each connection; or
	//	dns://SERVER/NAME:PORT by a DNS server
	//
	// Prefer addresses: the resolver may be behind the Services that this node programs. Files are read before each
	// connection, and about every 10 seconds during it; a feed leaves a server that they no longer list. While they cannot
	// be read, or any line is invalid, the feed keeps the previous targets.
	Targets []string
	// TLS is used for targets that are not Unix sockets. It needs the client's certificate, and RootCAs or another way
	// to verify the server's.
	TLS *tls.Config
	// GetTLS, if given, returns the configuration for each connection, in place of TLS: for certificate authorities that
	// are renewed. While it fails, no connection is made.
	GetTLS func() (*tls.Config, error)
	// Insecure connects without TLS to targets that are not Unix sockets.
	Insecure bool
	// Dial, if given, opens the connections to targets that are not Unix sockets, in place of a net.Dialer. The address is
	// that of a target, or one of those behind its name.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// State has the options of this node. NodeName may be empty if the certificate contains it.
	State localstate.Options

	// Resume, if given, is the position of another client of the same node: the server sends the changes since then if
	// it still keeps them, otherwise everything. It is for programs that show changes. A Feed that loses its connection
	// resumes without it.
	Resume *Resume

	// FreshnessWait is how long the feed waits, while it has a state or a kept one, for a server that has seen everything
	// that this state contains, before it accepts an older one, which the health of the run then shows. Until then the
	// state stays as it is. Default: 30 s. Negative: it does not wait. Servers whose source has no resourceVersions, such
	// as files, are not compared.
	FreshnessWait time.Duration

	// NodeVIPs, if given, is called with the addresses that some Service lists as an external IP or VIP and that another
	// Node of the cluster has, before a state that depends on them is handed over, and whenever they have changed. known
	// is false if the server does not say. It must not block.
	NodeVIPs func(list []netip.Addr, known bool)

	// Keep, if given, keeps the state in a file, for a restart while no server can be reached.
	Keep *Keep
}

// Resume names a state of one server.
type Resume struct {
	// InstanceID is that of the server which numbered the revision, as [Feed.Position] returns it.
	InstanceID string
	// Revision is the newest revision that the client has received completely.
	Revision uint64
}

func (o Options) validate() error {
	var errs []error
	if len(o.Targets) == 0 {
		errs = append(errs, errors.New("no targets"))
	}
	errs = append(errs, o.checkTargets(o.Targets, true))
	switch {
	case o.TLS != nil && o.GetTLS != nil:
		errs = append(errs, errors.New("both TLS and GetTLS are set"))
	case o.hasTLS() && o.Insecure:
		errs = append(errs, errors.New("both TLS and Insecure are set"))
	}
	if o.Keep != nil {
		errs = append(errs, o.Keep.validate(o))
	}
	return errors.Join(errs...)
}

func (o *Options) hasTLS() bool { return o.TLS != nil || o.GetTLS != nil }

// Feed is the kubeproxy.Feed that gets the state from a server. Give it to kubeproxy.Run. While no server can be
// reached, the sink keeps its state, and is still asked to retry and to resync; the health of the run says since when.
// There is always another attempt to connect. The first one after a lost connection comes within a second, to another
// target if there is one; then the pauses double, with jitter, up to 15 s.
type Feed struct {
	opts       Options
	maxBackoff time.Duration // the longest time between two attempts to connect
	// readTargets is how often files with targets are read while the feed is connected
	readTargets time.Duration
	keepEvery   time.Duration // the shortest time between two writes of the kept state
	running     atomic.Bool
	view        *view // under the lock of the run

	// The error of the last Sync, and the beginning of its text; used by Applied.
	failure error
	problem string

	mu          sync.Mutex    // guards what follows
	revision    uint64        // of the last complete batch
	instance    string        // of the server that numbered it
	flushed     uint64        // the revision that was last flushed to the sink
	seen        wire.Mark     // how new the state is
	applying    bool          // its Sync has not ended
	outcome     ack           // of the last Sync
	pausedUntil time.Time     // nothing more is applied before
	ackDue      chan struct{} // an outcome can be acknowledged
	// confirmed is when a server last confirmed that the state is the newest. restored is the same time for a state from a
	// file; zero: the state is not from a file.
	confirmed, restored time.Time
	restoredOf          []string // the texts of Keep.Cluster in the file

	// pauses says how long the run hands over nothing after a Sync; nil: not known.
	pauses interface{ MinInterval() time.Duration }

	partial bool // only changes since Options.Resume have been received; used by the dialer
}

// ack is the next acknowledgement.
type ack struct {
	revision uint64
	problem  string
}

var _ kubeproxy.Feed = (*Feed)(nil)

// NewFeed returns a Feed that does not run yet.
func NewFeed(opts Options) (*Feed, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	opts.FreshnessWait = cmp.Or(opts.FreshnessWait, 30*time.Second)
	if opts.Keep != nil {
		opts.Keep = opts.Keep.withDefaults()
	}
	return &Feed{opts: opts, maxBackoff: 15 * time.Second, keepEvery: keepEvery,
		readTargets: readTargets, view: newView(opts.State), ackDue: make(chan struct{}, 1)}, nil
}

// Position returns the position of the newest state that has been received. Another client of the same node can
// continue from there, see Options.Resume.
func (c *Feed) Position() Resume {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Resume{InstanceID: c.instance, Revision: c.revision}
}

// Node returns the node as a server knows it, for programs that need its addresses to create their sink. It waits until
// a server has sent the whole state, or until the one of Options.Keep is used. Call it before Run, which continues from
// that state. It fails only if ctx ends or the Feed is running.
func (c *Feed) Node(ctx context.Context) (*model.Node, error) {
	asking, end := context.WithCancel(ctx)
	defer end()
	if err := c.run(asking, &nodeHandler{end: end}, nil); err != nil {
		return nil, err
	}
	if c.view.node == nil {
		return nil, ctx.Err()
	}
	return c.view.node, nil
}

// SetFamilies replaces Options.State.Families. What has been received stays, since it does not depend on them. It is
// for programs that learn from [Feed.Node] which families to serve. It fails while the Feed is running.
func (c *Feed) SetFamilies(ctx context.Context, families []model.Family) error {
	if !c.running.CompareAndSwap(false, true) {
		return errRunning
	}
	defer c.running.Store(false)
	c.opts.State.Families = families
	c.view = c.view.withOptions(ctx, c.opts.State)
	return nil
}

var errRunning = errors.New("the feed is already running")

// nodeHandler ends a run when the state is complete. Nothing else uses the state meanwhile.
type nodeHandler struct {
	sync.Mutex
	end func()
}

func (h *nodeHandler) Changed(any)           {}
func (h *nodeHandler) Synced()               { h.end() }
func (h *nodeHandler) Health() *health.Proxy { return health.New(0) }

// Run implements kubeproxy.Feed.
func (c *Feed) Run(ctx context.Context, h kubeproxy.FeedHandler) error {
	return c.run(ctx, h, c.keep)
}

// run implements Run. keep, if given, runs at the same time if the state is to be kept.
func (c *Feed) run(ctx context.Context, h kubeproxy.FeedHandler,
	keep func(context.Context, kubeproxy.FeedHandler)) error {
	if !c.running.CompareAndSwap(false, true) {
		return errRunning
	}
	defer c.running.Store(false)
	c.view.handed, c.view.nodeGiven = &sink.Snapshot{}, nil // the sink gets everything
	c.mu.Lock()
	c.flushed, c.applying, c.outcome, c.pausedUntil = 0, false, ack{}, time.Time{}
	c.pauses, _ = h.(interface{ MinInterval() time.Duration })
	c.mu.Unlock()
	d := &dialer{client: c, handler: h, log: klog.FromContext(ctx), answer: firstAnswer}
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.opts.Keep != nil {
		if c.view.node == nil {
			c.recall()
		}
		wg.Go(func() { d.restoreLater(ctx) })
		if keep != nil {
			wg.Go(func() { keep(ctx, h) })
		}
	}
	d.run(ctx)
	return nil
}

// Families implements kubeproxy.Feed.
func (c *Feed) Families() []model.Family { return c.view.families }

// Pending implements kubeproxy.Feed.
func (c *Feed) Pending() localstate.Pending { return c.view.pending }

// Flush implements kubeproxy.Feed.
func (c *Feed) Flush(r localstate.Receiver) localstate.Changes {
	changes := c.view.flush(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushed, c.applying = c.revision, true
	return changes
}

// NoLocalEndpoints implements kubeproxy.Feed.
func (c *Feed) NoLocalEndpoints() localstate.NoLocalEndpoints { return c.view.noLocal.total }

// Applied implements kubeproxy.Feed: it reports to the server the outcome, and how long the run pauses now, which may
// differ after each Sync.
func (c *Feed) Applied(err error) {
	if !syncing.SameError(err, c.failure) {
		if c.failure, c.problem = err, ""; err != nil {
			c.problem = wire.FirstOf(err.Error())
		}
	}
	c.mu.Lock()
	run := c.pauses
	c.mu.Unlock()
	pausedUntil := time.Now()
	if run != nil {
		pausedUntil = pausedUntil.Add(run.MinInterval()) // without mu, which must be taken after the lock of the run
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := ack{revision: c.flushed, problem: c.problem}
	c.outcome, c.applying, c.pausedUntil = now, false, pausedUntil
	select {
	case c.ackDue <- struct{}{}:
	default: // a check is pending already
	}
}
