package nodeaddr

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func on(name string, list ...string) []HostAddress {
	var addrs []HostAddress
	for _, a := range ips(list...) {
		addrs = append(addrs, HostAddress{Addr: a, Interface: name})
	}
	return addrs
}

// faulty is a host that fails on request.
type faulty struct {
	Fake
	mu      sync.Mutex // guards what follows
	readErr error
	cancel  context.CancelCauseFunc // of the last Watch
}

// Fail makes Addresses return an error, until it is called with nil.
func (h *faulty) Fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readErr = err
}

// Break makes Watch return an error.
func (h *faulty) Break(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancel(err)
}

func (h *faulty) Addresses() ([]HostAddress, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readErr != nil {
		return nil, h.readErr
	}
	return h.Fake.Addresses()
}

func (h *faulty) Watch(ctx context.Context, changed func()) error {
	broken, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.mu.Lock()
	h.cancel = cancel
	h.mu.Unlock()
	_ = h.Fake.Watch(broken, changed)
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(broken)
}

func TestTrackerFollowsTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &Fake{}
		host.Set(on("eth0", "10.0.0.1")...)
		var changes []string
		tracker, err := NewTracker(Options{
			Choice: Choice{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, Host: host,
			Changed: func(a Addresses) { changes = append(changes, a.String()) },
		})
		require.NoError(t, err)
		require.Equal(t, ips("10.0.0.1"), tracker.Addresses().IPs, "known from the start")
		changes = nil

		host.Set(on("eth0", "10.0.0.2")...) // before Run
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tracker.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, ips("10.0.0.2"), tracker.Addresses().IPs, "what came between is noticed")
		host.Set(on("eth0", "10.0.0.2", "192.0.2.1")...)
		require.Equal(t, ips("10.0.0.2"), tracker.Addresses().IPs)
		host.Set(on("eth0", "10.0.0.2", "10.0.0.4")...)
		require.Equal(t, []string{"IPv4: 10.0.0.2, all IPv6 ()", "IPv4: 10.0.0.2, 10.0.0.4, all IPv6 ()"}, changes,
			"no news is no call")

		cancel()
		require.NoError(t, <-ended)
		require.Zero(t, host.watching())
	})
}

// Addresses that could not be read after a change are read again without another one.
func TestAddressesThatCannotBeReadAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &faulty{}
		tracker, err := NewTracker(Options{Host: host})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tracker.Run(ctx) }()
		synctest.Wait()
		host.Fail(errors.New("no memory"))
		host.Set(on("eth0", "10.0.0.1")...)
		time.Sleep(firstPause)
		synctest.Wait()
		require.Empty(t, tracker.Addresses().IPs)
		host.Fail(nil)
		time.Sleep(2 * firstPause)
		synctest.Wait()
		require.Equal(t, ips("10.0.0.1"), tracker.Addresses().IPs)
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestTrackerGoesOnAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &faulty{}
		host.Set(on("eth0", "10.0.0.1")...)
		tracker, err := NewTracker(Options{Host: host})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tracker.Run(ctx) }()
		synctest.Wait()

		host.Fail(errors.New("no memory"))
		host.Set()
		require.Equal(t, ips("10.0.0.1"), tracker.Addresses().IPs, "what is known last stays")
		host.Fail(nil)
		host.Break(errors.New("socket closed"))
		synctest.Wait()
		require.Zero(t, host.watching())
		time.Sleep(firstPause)
		synctest.Wait()
		require.Equal(t, 1, host.watching())
		require.Empty(t, tracker.Addresses().IPs)

		// The pause grows, up to a bound, and starts anew when it went well for long.
		pauses := []time.Duration{200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000}
		for _, pause := range pauses {
			host.Break(errors.New("socket closed"))
			time.Sleep(pause*time.Millisecond - time.Nanosecond)
			synctest.Wait()
			require.Zero(t, host.watching(), pause)
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Equal(t, 1, host.watching(), pause)
		}
		time.Sleep(time.Minute)
		host.Break(errors.New("socket closed"))
		time.Sleep(firstPause)
		synctest.Wait()
		require.Equal(t, 1, host.watching())

		// A context that ends cuts it short.
		host.Break(errors.New("socket closed"))
		synctest.Wait()
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestTrackerOfThePrimaryAddressFollowsTheNode(t *testing.T) {
	changes := 0
	tracker, err := NewTracker(Options{Choice: Choice{Primary: true}, Host: &Fake{},
		Changed: func(Addresses) { changes++ }})
	require.NoError(t, err)
	require.Empty(t, tracker.Addresses().IPs)
	tracker.SetNode(&model.Node{Name: "n", IPs: ips("10.0.0.1", "10.0.0.9")})
	require.Equal(t, ips("10.0.0.1"), tracker.Addresses().IPs)
	tracker.SetNode(&model.Node{Name: "n", Zone: "z", IPs: ips("10.0.0.1")})
	require.Equal(t, 1, changes)
}

func TestNewTrackerSaysThatItCannotRead(t *testing.T) {
	host := &faulty{}
	host.Fail(errors.New("no memory"))
	_, err := NewTracker(Options{Host: host})
	require.EqualError(t, err, "reading the host's addresses: no memory")
}

// watching returns how many calls of Watch are under way.
func (h *Fake) watching() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}
