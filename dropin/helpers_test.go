package dropin

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	hnsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	iptablesdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	ipvsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
)

// ParseCommand is command.Parse, which TestMain sets: package command imports this one, so that only tests outside of
// the package can import it.
var ParseCommand func(args []string, out io.Writer) (ParsedCommand, error)

// ParsedCommand is a command.Command.
type ParsedCommand struct {
	Config   *Config
	Warnings []config.Warning
	Run      func(context.Context) error
}

var (
	tableIPv4 = dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName}
	tableIPv6 = dataplane.TableKey{Family: model.IPv6, Name: nft.DefaultTableName}
)

// rig is a fake machine, and a cluster without an API server.
type rig struct {
	*machine
	ctx      context.Context // with a logger
	root     string
	client   *fake.Clientset
	nft      *notifyingFake
	iptables [2]*notifyingIPTables // IPv4, IPv6
	ipvs     *ipvsdataplane.Fake
	hns      *hnsdataplane.Fake
	bound    *listeners

	hostAddresses, localAddresses nodeaddr.Fake

	ended chan struct{} // closed when what start started has ended

	gcPercent, leastGCPercent atomic.Int32 // as set last, and when it went down

	mu  sync.Mutex
	log strings.Builder
}

func newRig(t *testing.T, objects ...runtime.Object) *rig {
	r := &rig{
		root:     t.TempDir(),
		client:   fake.NewClientset(objects...),
		nft:      &notifyingFake{Fake: dataplane.NewFake(), applied: make(chan struct{}, 1)},
		iptables: newIPTables(),
		ipvs:     ipvsdataplane.NewFake(),
		hns:      hnsdataplane.NewFake(),
		bound:    &listeners{found: make(chan struct{}, 100), byAsked: map[string]string{}},
	}
	for name, value := range map[string]string{
		"proc/net/if_inet6":                                           "",
		"proc/self/oom_score_adj":                                     "0",
		"proc/sys/net/ipv6/conf/all/disable_ipv6":                     "0\n",
		"proc/sys/net/netfilter/nf_conntrack_max":                     "1\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal":          "0\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established": "432000\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait":  "60\n",
		"proc/sys/net/ipv4/conf/all/route_localnet":                   "0\n",
		"proc/sys/net/ipv4/conf/all/arp_ignore":                       "0\n",
		"proc/sys/net/ipv4/conf/all/arp_announce":                     "0\n",
		"proc/sys/net/ipv4/vs/conntrack":                              "0\n",
		"proc/sys/net/ipv4/vs/expire_nodest_conn":                     "0\n",
		"proc/sys/net/ipv4/vs/expire_quiescent_template":              "0\n",
		"proc/sys/net/ipv4/ip_forward":                                "0\n",
		"sys/module/nf_conntrack/parameters/hashsize":                 "1000000\n",
		"proc/sys/net/netfilter/nf_conntrack_udp_timeout":             "30\n",
	} {
		path := filepath.Join(r.root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(value), 0o644))
	}
	logger := funcr.New(func(prefix, args string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.log.WriteString(prefix + " " + args + "\n")
	}, funcr.Options{})
	r.ctx = klog.NewContext(t.Context(), logger)
	r.machine = &machine{
		reached: newReached(),
		setGCPercent: func(percent int) {
			if before := r.gcPercent.Swap(int32(percent)); int32(percent) < before {
				r.leastGCPercent.Store(int32(percent))
			}
		},
		newClient: func(componentbasev1alpha1.ClientConnectionConfiguration, string) (kubernetes.Interface, error) {
			return r.client, nil
		},
		hostname: func() (string, error) { return "N1", nil },
		listen:   r.bound.listen,
		root:     sysctl.Root(r.root),
		nftables: r.nft,
		iptables: []iptablesdataplane.Interface{r.iptables[0], r.iptables[1]},
		ipvs:     r.ipvs,
		flows:    noFlows{},
		host:     &r.hostAddresses,
		local:    &r.hostAddresses,

		hns:       r.hns,
		hnsRecord: filepath.Join(r.root, "state", "record"),
	}
	r.hns.SetNetwork(hnsdataplane.Network{Name: hnsNetwork, Type: "L2Bridge"}, false)
	r.hns.AddEndpoint(hnsNetwork, hnsdataplane.Endpoint{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	return r
}

// run runs the program with the arguments given until it ends by itself.
func (r *rig) run(args ...string) error { return r.runIn(r.ctx, args) }

func (r *rig) runIn(ctx context.Context, args []string) error {
	c, err := ParseCommand(args, io.Discard)
	if err != nil {
		return err
	}
	c.Config.machine = r.machine
	return c.Run(ctx)
}

// fromArgs returns the settings that flags come to, and the warnings.
func fromArgs(t *testing.T, args ...string) (*settings, []string, error) {
	c, err := ParseCommand(args, io.Discard)
	require.NoError(t, err)
	s, err := c.Config.settings()
	var lines []string
	for _, w := range c.Warnings {
		lines = append(lines, w.String())
	}
	return s, lines, err
}

// writeFile writes a file for a test, and returns its path.
func writeFile(t *testing.T, content string) string {
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// start runs the program, and returns what ends it, as SIGTERM would, and gives its error.
func (r *rig) start(t *testing.T, args ...string) (stop func() error) {
	return r.startFunc(t, func(ctx context.Context) error { return r.runIn(ctx, args) })
}

// startFunc is start with what is to run.
func (r *rig) startFunc(t *testing.T, run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(r.ctx)
	r.ended = make(chan struct{})
	var err error
	go func() {
		defer close(r.ended)
		err = run(ctx)
	}()
	stop = sync.OnceValue(func() error {
		cancel()
		<-r.ended
		return err
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// watches tells when a resource is first watched: the fake clientset loses changes that come between a list and its
// watch. Of Nodes it tells of the node's own; see watchesAllNodes.
func (r *rig) watches(resource string) <-chan struct{} {
	return r.watchesWhere(resource, func(fields fields.Selector) bool { return resource != "nodes" || !fields.Empty() })
}

// watchesAllNodes is watches for the Nodes of the whole cluster.
func (r *rig) watchesAllNodes() <-chan struct{} {
	return r.watchesWhere("nodes", fields.Selector.Empty)
}

// watchesWhere never waits for the test: client-go may watch again at any time, and a watch that waits never ends.
func (r *rig) watchesWhere(resource string, which func(fields.Selector) bool) <-chan struct{} {
	watching := make(chan struct{}, 1)
	r.client.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, apiwatch.Interface, error) {
		if !which(action.(clienttesting.WatchAction).GetWatchRestrictions().Fields) {
			return false, nil, nil
		}
		w, err := r.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		select {
		case watching <- struct{}{}:
		default:
		}
		return true, w, err
	})
	return watching
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// waitLogged waits until the log has a text: much is logged by goroutines of their own.
func (r *rig) waitLogged(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(r.logged(), text) }, time.Minute, time.Millisecond, text)
}

func (r *rig) file(t *testing.T, name string) string {
	data, err := os.ReadFile(filepath.Join(r.root, name))
	require.NoError(t, err)
	return strings.TrimSpace(string(data))
}

// waitFor waits until a table looks as it should.
func (r *rig) waitFor(t *testing.T, table dataplane.TableKey, ok func(dump string) bool) {
	t.Helper()
	for !ok(r.nft.Dump(table)) {
		select {
		case <-r.nft.applied:
		case <-r.ended:
			t.Fatal("the program ended before the table looked as expected:\n", r.nft.Dump(table), r.logged())
		}
	}
}

func contains(text string) func(string) bool {
	return func(dump string) bool { return strings.Contains(dump, text) }
}

// notifyingFake tells when something has been applied.
type notifyingFake struct {
	*dataplane.Fake
	applied chan struct{}
	before  func(*dataplane.Transaction) // if set, called before each transaction
}

func (f *notifyingFake) Apply(ctx context.Context, tx *dataplane.Transaction) error {
	if f.before != nil {
		f.before(tx)
	}
	err := f.Fake.Apply(ctx, tx)
	select {
	case f.applied <- struct{}{}:
	default:
	}
	return err
}

// listeners listens on free ports of the loopback address instead of those that it is asked for.
type listeners struct {
	mu      sync.Mutex
	byAsked map[string]string
	found   chan struct{}
	fail    func(address string) error
}

func (l *listeners) listen(ctx context.Context, _, address string) (net.Listener, error) {
	if l.fail != nil {
		if err := l.fail(address); err != nil {
			return nil, err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.byAsked[address] = listener.Addr().String()
	l.mu.Unlock()
	l.found <- struct{}{}
	return listener, nil
}

// url waits until a server listens on an address, and returns its URL.
func (r *rig) url(t *testing.T, asked string) string {
	for l := r.bound; ; {
		l.mu.Lock()
		address, ok := l.byAsked[asked]
		l.mu.Unlock()
		if ok {
			return "http://" + address
		}
		select {
		case <-l.found:
		case <-r.ended:
			t.Fatalf("nobody listens on %s", asked)
		}
	}
}
