package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// service has a health check on a port, with counts of local endpoints; -1 is a family that it is not in.
func service(name string, port uint16, v4, v6 int) *model.Service {
	s := &model.Service{
		Name: model.ServiceName{Namespace: "default", Name: name},
		HealthCheck: &model.HealthCheck{NodePort: port,
			LocalEndpoints: model.PerFamily[int]{IPv4: max(v4, 0), IPv6: max(v6, 0)}},
	}
	if v4 >= 0 {
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("10.96.0.1"))
	}
	if v6 >= 0 {
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd96::1"))
	}
	return s
}

// listeners opens real listeners on loopback ports of the kernel's choice, whatever is asked for, and remembers what
// that was.
type listeners struct {
	mu   sync.Mutex
	open map[string]net.Listener // by what was asked for
	fail map[string]error
	log  []string
}

func (l *listeners) listen(ctx context.Context, network, address string) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, "open "+network+" "+address)
	if err := l.fail[address]; err != nil {
		return nil, err
	}
	if l.open == nil {
		l.open = map[string]net.Listener{}
	}
	if l.open[address] != nil {
		return nil, errors.New("address already in use")
	}
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.open[address] = socket
	return &loggedListener{Listener: socket, l: l, address: address}, nil
}

type loggedListener struct {
	net.Listener
	l       *listeners
	address string
	once    sync.Once
}

func (l *loggedListener) Close() error {
	l.once.Do(func() {
		l.l.mu.Lock()
		defer l.l.mu.Unlock()
		l.l.log = append(l.l.log, "close "+l.address)
		delete(l.l.open, l.address)
	})
	return l.Listener.Close()
}

// takeLog returns what was opened and closed since the last call, sorted where the order does not matter: all that is
// closed in one Sync is closed before anything is opened.
func (l *listeners) takeLog() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	log := l.log
	l.log = nil
	opens := slices.IndexFunc(log, func(s string) bool { return strings.HasPrefix(s, "open") })
	if opens < 0 {
		opens = len(log)
	}
	slices.Sort(log[:opens])
	return log
}

// get asks the listener that was asked to be on an address.
func (l *listeners) get(t *testing.T, address string) (code int, header http.Header, body string) {
	t.Helper()
	l.mu.Lock()
	socket := l.open[address]
	l.mu.Unlock()
	require.NotNil(t, socket, "nobody listens on %s", address)
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Get("http://" + socket.Addr().String() + "/any/path")
	require.NoError(t, err)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Header, string(b)
}

func (l *listeners) addresses() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []string
	for a := range l.open {
		list = append(list, a)
	}
	slices.Sort(list)
	return list
}

func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		name    string
		local   int
		healthy bool
		code    int
	}{
		{"endpoints, and the proxy is healthy", 2, true, 200},
		{"no endpoint", 0, true, 503},
		{"endpoints, but the proxy is not healthy", 2, false, 503},
		{"neither", 0, false, 503},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := &listeners{}
			s := NewServices(nil, ServicesOptions{Listen: l.listen, Healthy: func() bool { return test.healthy }})
			defer s.Close()
			s.SetService(service("web", 32000, test.local, 7))
			require.NoError(t, s.Sync(t.Context()))
			code, header, body := l.get(t, "0.0.0.0:32000")
			require.Equal(t, test.code, code)
			require.Equal(t, []string{"application/json"}, header["Content-Type"])
			require.Equal(t, []string{"nosniff"}, header["X-Content-Type-Options"])
			require.Equal(t, []string{fmt.Sprint(test.local)}, header["X-Load-Balancing-Endpoint-Weight"])
			require.Equal(t, fmt.Sprintf(`{
	"service": {
		"namespace": "default",
		"name": "web"
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %v
}`, test.local, test.healthy), body)

			_, header, _ = l.get(t, "[::]:32000")
			require.Equal(t, "7", header.Get("X-Load-Balancing-Endpoint-Weight"), "each family has its own count")
		})
	}
}

func TestListenersFollowTheServices(t *testing.T) {
	l := &listeners{}
	s := NewServices(nil, ServicesOptions{Listen: l.listen})
	defer s.Close()
	sync := func(want ...string) {
		t.Helper()
		require.NoError(t, s.Sync(t.Context()))
		require.Equal(t, want, l.takeLog())
	}
	sync()
	s.SetService(service("web", 32000, 1, 1))
	s.SetService(service("one-family", 32001, -1, 1))
	plain := service("plain", 32009, 1, 1)
	plain.HealthCheck = nil
	s.SetService(plain)
	require.Empty(t, l.takeLog(), "nothing before Sync")
	sync("open tcp4 0.0.0.0:32001", "open tcp6 [::]:32001", "open tcp4 0.0.0.0:32000", "open tcp6 [::]:32000")

	s.SetService(service("web", 32000, 0, 5))
	sync()
	_, header, _ := l.get(t, "[::]:32000")
	require.Equal(t, "5", header.Get("X-Load-Balancing-Endpoint-Weight"), "a count changes without a new listener")

	s.SetService(service("web", 32002, 0, 5))
	sync("close 0.0.0.0:32000", "close [::]:32000", "open tcp4 0.0.0.0:32002", "open tcp6 [::]:32002")

	// A port moves to a service whose name comes first.
	s.SetService(service("one-family", 32002, -1, 1))
	s.SetService(service("web", 32003, 1, -1))
	sync("close 0.0.0.0:32001", "close 0.0.0.0:32002", "close [::]:32001", "close [::]:32002",
		"open tcp4 0.0.0.0:32002", "open tcp6 [::]:32002", "open tcp4 0.0.0.0:32003", "open tcp6 [::]:32003")

	web := *service("web", 0, 1, 1)
	web.HealthCheck = nil
	s.SetService(&web)
	sync("close 0.0.0.0:32003", "close [::]:32003")
	s.DeleteService(model.ServiceName{Namespace: "default", Name: "one-family"})
	sync("close 0.0.0.0:32002", "close [::]:32002")
	require.Empty(t, s.open, "nothing is kept of what is gone")
}

func TestListensOnTheAddressesOfTheNode(t *testing.T) {
	l := &listeners{}
	addrs := func(list ...string) nodeaddr.Addresses {
		var a nodeaddr.Addresses
		for _, text := range list {
			a.IPs = append(a.IPs, netip.MustParseAddr(text))
		}
		return a
	}
	now := addrs("192.0.2.1", "192.0.2.2", "2001:db8::1")
	s := NewServices(nil, ServicesOptions{Listen: l.listen, Addresses: func() nodeaddr.Addresses { return now }})
	defer s.Close()
	s.SetService(service("web", 32000, 1, 1))
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []string{"192.0.2.1:32000", "192.0.2.2:32000", "[2001:db8::1]:32000"}, l.addresses())
	l.takeLog()
	now = addrs("192.0.2.1", "2001:db8::2")
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []string{"close 192.0.2.2:32000", "close [2001:db8::1]:32000", "open tcp6 [2001:db8::2]:32000"},
		l.takeLog())
	now = nodeaddr.Addresses{All: model.IPv6.Set(), IPs: addrs("192.0.2.1", "2001:db8::2").IPs}
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []string{"192.0.2.1:32000", "[::]:32000"}, l.addresses())
}

// A load balancer may ask in a family that the service is not in.
func TestAServiceOfOneFamilyIsAnsweredForInBoth(t *testing.T) {
	weights := func(l *listeners) [2]string {
		_, v4, _ := l.get(t, "0.0.0.0:32000")
		_, v6, _ := l.get(t, "[::]:32000")
		return [2]string{v4.Get("X-Load-Balancing-Endpoint-Weight"), v6.Get("X-Load-Balancing-Endpoint-Weight")}
	}
	broken := errors.New("not applied")
	for _, test := range []struct {
		name          string
		before, after *model.Service
		fails         model.Family // in the second Sync
		want, then    [2]string
	}{
		{"IPv4 alone", service("web", 32000, 2, -1), service("web", 32000, 3, -1), 0, [2]string{"2", "2"},
			[2]string{"3", "3"}},
		{"IPv6 alone", service("web", 32000, -1, 2), service("web", 32000, -1, 3), 0, [2]string{"2", "2"},
			[2]string{"3", "3"}},
		{"IPv4 alone, and IPv6 fails", service("web", 32000, 2, -1), service("web", 32000, 3, -1), model.IPv6,
			[2]string{"2", "2"}, [2]string{"3", "3"}},
		{"IPv4 alone, and IPv4 fails", service("web", 32000, 2, -1), service("web", 32000, 3, -1), model.IPv4,
			[2]string{"2", "2"}, [2]string{"2", "2"}},
		{"it becomes dual-stack", service("web", 32000, 2, -1), service("web", 32000, 3, 1), 0, [2]string{"2", "2"},
			[2]string{"3", "1"}},
		{"it becomes dual-stack, and IPv6 fails", service("web", 32000, 2, -1), service("web", 32000, 3, 1), model.IPv6,
			[2]string{"2", "2"}, [2]string{"3", "2"}},
		{"it becomes single-stack", service("web", 32000, 2, 1), service("web", 32000, -1, 4), 0, [2]string{"2", "1"},
			[2]string{"4", "4"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, next := &listeners{}, &sink.Recorder{}
			s := NewServices(next, ServicesOptions{Listen: l.listen})
			defer s.Close()
			s.SetNode(&model.Node{Name: "node-1"})
			s.SetService(test.before)
			require.NoError(t, s.Sync(t.Context()))
			require.Equal(t, test.want, weights(l))
			l.takeLog()
			s.SetService(test.after)
			if test.fails != 0 {
				next.FailNext(&sink.FamilyError{Family: test.fails, Err: broken})
			}
			_ = s.Sync(t.Context())
			require.Equal(t, test.then, weights(l))
			require.Empty(t, l.takeLog(), "no listener is closed meanwhile")
			s.DeleteService(test.after.Name)
			require.NoError(t, s.Sync(t.Context()))
			require.Empty(t, l.addresses())
		})
	}
}

// On a machine without IPv6 a service of IPv4 is complete.
func TestWithoutIPv6OnTheMachineAnIPv4ServiceIsServed(t *testing.T) {
	lacks := fmt.Errorf("listen: %w", syscall.EAFNOSUPPORT)
	l := &listeners{fail: map[string]error{"[::]:32000": lacks, "[::]:32001": lacks}}
	e := &events{}
	s := NewServices(nil, ServicesOptions{Listen: l.listen, Events: e})
	defer s.Close()
	s.SetService(service("web", 32000, 1, -1))
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []string{"0.0.0.0:32000"}, l.addresses())
	require.Empty(t, *e)
	l.takeLog()
	require.NoError(t, s.Sync(t.Context()))
	require.Empty(t, l.takeLog(), "it is not tried again")

	s.SetService(service("dual", 32001, 1, 1))
	require.NoError(t, s.Sync(t.Context()))
	require.Len(t, *e, 1, "a service of that family is another matter")
}

type events []string

func (e *events) ServiceWarning(service model.ServiceName, reason, action, note string) {
	*e = append(*e, fmt.Sprintf("%v %s %s: %s", service, reason, action, note))
}

func TestAPortInUseCausesAnEventAndIsTriedAgain(t *testing.T) {
	l := &listeners{fail: map[string]error{"0.0.0.0:32000": errors.New("address already in use")}}
	e := &events{}
	logged := 0
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, line string) {
		if strings.Contains(line, "Cannot start a health check server") {
			logged++
		}
	}, funcr.Options{}))
	s := NewServices(nil, ServicesOptions{Listen: l.listen, Events: e, NodeName: "node-1"})
	defer s.Close()
	s.retries.pause = 0
	s.SetService(service("web", 32000, 1, 1))
	s.SetService(service("other", 32001, 1, -1))
	want := []string{
		`default/web FailedToStartServiceHealthcheck Listen: node node-1 failed to start healthcheck "default/web" on port 32000: 0.0.0.0:32000: address already in use`}
	require.NoError(t, s.Sync(ctx), "traffic does not depend on it")
	require.Equal(t, want, []string(*e))
	require.Equal(t, []string{"0.0.0.0:32001", "[::]:32000", "[::]:32001"}, l.addresses(), "the others are open")

	l.takeLog()
	require.NoError(t, s.Sync(ctx), "although nothing has changed")
	require.Equal(t, []string{"open tcp4 0.0.0.0:32000"}, l.takeLog())
	require.Equal(t, append(want, want...), []string(*e), "recorders make a series of them")
	require.Equal(t, 1, logged, "the log has it until the error changes")

	l.fail["0.0.0.0:32000"] = errors.New("permission denied")
	require.NoError(t, s.Sync(ctx))
	require.Len(t, *e, 3)
	require.Equal(t, 2, logged)

	l.fail = nil
	require.NoError(t, s.Sync(ctx))
	require.Len(t, *e, 3)
	code, _, _ := l.get(t, "0.0.0.0:32000")
	require.Equal(t, 200, code)
}

// A hundred Syncs a second are not a hundred attempts and Events, even if the service itself changes each time.
func TestAPortInUseIsTriedOnceASecondHoweverOftenThereIsASync(t *testing.T) {
	for name, change := range map[string]bool{"the service stays as it is": false, "the service changes": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tried []time.Time
				e := &events{}
				s := NewServices(nil, ServicesOptions{Events: e, NodeName: "node-1",
					Addresses: func() nodeaddr.Addresses { return nodeaddr.Addresses{All: model.IPv4.Set()} },
					Listen: func(context.Context, string, string) (net.Listener, error) {
						tried = append(tried, time.Now())
						return nil, errors.New("in use")
					}})
				defer s.Close()
				s.SetService(service("web", 32000, 1, -1))
				for n := range 1000 {
					if change {
						s.SetService(service("web", 32000, n, -1))
					}
					require.NoError(t, s.Sync(t.Context()))
					time.Sleep(10 * time.Millisecond)
				}
				require.InDelta(t, 10, len(tried), 1)
				require.Len(t, *e, len(tried))

				s.SetService(service("web", 32001, 1, -1))
				before := len(tried)
				require.NoError(t, s.Sync(t.Context()))
				require.Len(t, tried, before+1, "another port is tried at once")
			})
		})
	}
}

// In a quiet cluster the next Sync may be hours away.
func TestASyncIsRequestedForAPortInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := func(context.Context, string, string) (net.Listener, error) { return nil, errors.New("in use") }
		var requests atomic.Int64 // of the goroutine of a timer
		e := &events{}
		s := NewServices(nil, ServicesOptions{Listen: refuse, Events: e, RequestSync: func() { requests.Add(1) }})
		s.SetService(service("web", 32000, 1, 1))
		s.SetService(service("other", 32001, 1, -1))
		for want := range 3 {
			require.NoError(t, s.Sync(t.Context()))
			time.Sleep(retryPause - time.Nanosecond)
			synctest.Wait()
			require.EqualValues(t, want, requests.Load())
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.EqualValues(t, want+1, requests.Load(), "for both services")
		}
		s.DeleteService(service("web", 32000, 1, 1).Name)
		s.DeleteService(service("other", 32001, 1, -1).Name)
		require.NoError(t, s.Sync(t.Context()))
		time.Sleep(time.Hour)
		require.EqualValues(t, 3, requests.Load(), "nothing is left to open")
		require.Len(t, *e, 6, "one for each service and failure")

		s.SetService(service("web", 32000, 1, 1))
		require.NoError(t, s.Sync(t.Context()))
		s.Close()
		time.Sleep(time.Hour)
		require.EqualValues(t, 3, requests.Load())
	})
}

// idleListener is a listener without clients, until it fails or is closed.
type idleListener struct {
	net.Listener
	failure chan error
	closed  func()
}

func newIdleListener() *idleListener {
	l := &idleListener{failure: make(chan error, 1)}
	l.closed = sync.OnceFunc(func() { close(l.failure) })
	return l
}

func (l *idleListener) Accept() (net.Conn, error) {
	if err, ok := <-l.failure; ok {
		return nil, err
	}
	return nil, net.ErrClosed
}

func (l *idleListener) Close() error {
	l.closed()
	return nil
}

func (l *idleListener) Addr() net.Addr { return &net.TCPAddr{} }

// The same goes for a listener that fails later.
func TestASyncIsRequestedForAListenerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened []*idleListener
		requests := make(chan struct{}, 8)
		s := NewServices(nil, ServicesOptions{
			Listen: func(context.Context, string, string) (net.Listener, error) {
				opened = append(opened, newIdleListener())
				return opened[len(opened)-1], nil
			},
			RequestSync: func() { requests <- struct{}{} },
		})
		defer s.Close()
		s.SetService(service("web", 32000, 1, -1))
		require.NoError(t, s.Sync(t.Context()))
		require.Len(t, opened, 2)
		time.Sleep(time.Hour)
		require.Empty(t, requests)

		failed := time.Now()
		opened[0].failure <- errors.New("the network is down")
		<-requests
		require.Equal(t, retryPause, time.Since(failed))
		require.NoError(t, s.Sync(t.Context()))
		require.Len(t, opened, 3)

		s.DeleteService(service("web", 32000, 1, -1).Name)
		require.NoError(t, s.Sync(t.Context()))
		time.Sleep(time.Hour)
		require.Empty(t, requests, "those that are closed on purpose need none")
	})
}

// A listener may fail while Close is under way.
func TestNoSyncIsRequestedAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := NewServices(nil, ServicesOptions{RequestSync: func() { requests++ }})
		web := service("web", 32000, 1, -1).Name
		s.retries.later(web)
		time.Sleep(retryPause)
		synctest.Wait()
		require.Equal(t, 1, requests)
		s.Close()
		s.retries.later(web)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, requests)
	})
}

// Listeners that fail one after the other, more often than once in half a minute, do not put off the request.
func TestFurtherFailuresDoNotPutOffTheRequestForASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const services = 5
		opened := map[string]*idleListener{}
		requests := make(chan struct{}, 8)
		s := NewServices(nil, ServicesOptions{
			Addresses: func() nodeaddr.Addresses { return nodeaddr.Addresses{All: model.IPv4.Set()} },
			Listen: func(_ context.Context, _, address string) (net.Listener, error) {
				opened[address] = newIdleListener()
				return opened[address], nil
			},
			RequestSync: func() { requests <- struct{}{} },
		})
		defer s.Close()
		for i := range services {
			s.SetService(service(fmt.Sprint("web-", i), uint16(32000+i), 1, -1))
		}
		require.NoError(t, s.Sync(t.Context()))
		first := time.Now()
		for i := range services {
			opened[fmt.Sprint("0.0.0.0:", 32000+i)].failure <- errors.New("the network is down")
			synctest.Wait()
			time.Sleep(retryPause * 2 / 5)
		}
		require.Equal(t, 2*retryPause, time.Since(first))
		require.Len(t, requests, 1, "half a minute after the first failure")

		// A Sync for another reason tries all of them, so no further Sync has to be requested.
		require.NoError(t, s.Sync(t.Context()))
		time.Sleep(time.Hour)
		require.Len(t, requests, 1)
	})
}

// BenchmarkServicesOnManyAddresses changes one service on a node with many node-port addresses.
func BenchmarkServicesOnManyAddresses(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("addresses=%d", n), func(b *testing.B) {
			var addrs nodeaddr.Addresses
			for i := range n {
				addrs.IPs = append(addrs.IPs, netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}))
			}
			s := NewServices(nil, ServicesOptions{
				Addresses: func() nodeaddr.Addresses { return addrs },
				Listen: func(context.Context, string, string) (net.Listener, error) {
					return newIdleListener(), nil
				},
			})
			defer s.Close()
			for i := 0; b.Loop(); i++ {
				s.SetService(service("web", 32000, i, -1))
				require.NoError(b, s.Sync(b.Context()))
			}
		})
	}
}

// An IPv6 address that has just come cannot be used for a second or two, while the kernel looks for duplicates. No
// other change of the addresses follows.
func TestAnAddressThatIsNotUsableYetIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		usable := false
		var opened []string
		requests := make(chan struct{}, 8)
		s := NewServices(nil, ServicesOptions{
			Addresses: func() nodeaddr.Addresses { return nodeaddr.Addresses{IPs: []netip.Addr{v4, v6}} },
			Listen: func(_ context.Context, network, address string) (net.Listener, error) {
				if network == "tcp6" && !usable {
					return nil, syscall.EADDRNOTAVAIL
				}
				opened = append(opened, address)
				return newIdleListener(), nil
			},
			RequestSync: func() { requests <- struct{}{} },
		})
		defer s.Close()
		s.SetService(service("web", 32000, 1, -1)) // of the other family: that is no reason for an Event
		require.NoError(t, s.Sync(t.Context()))
		require.Equal(t, []string{"192.0.2.1:32000"}, opened)
		usable = true
		<-requests
		require.NoError(t, s.Sync(t.Context()))
		require.Equal(t, []string{"192.0.2.1:32000", "[2001:db8::1]:32000"}, opened)
		time.Sleep(time.Hour)
		require.Empty(t, requests)
	})
}

func TestAListenerThatEndsByItselfIsOpenedAgain(t *testing.T) {
	l := &listeners{}
	s := NewServices(nil, ServicesOptions{Listen: l.listen})
	defer s.Close()
	s.SetService(service("web", 32000, 1, -1))
	require.NoError(t, s.Sync(t.Context()))
	opened := s.open[model.ServiceName{Namespace: "default", Name: "web"}].listeners[listenKey{model.IPv4,
		netip.IPv4Unspecified(), 32000}]
	require.NoError(t, l.open["0.0.0.0:32000"].Close())
	<-opened.done
	require.NoError(t, s.Sync(t.Context()))
	code, _, _ := l.get(t, "0.0.0.0:32000")
	require.Equal(t, 200, code)
}

func TestNothingIsServedBeforeItIsApplied(t *testing.T) {
	l, next := &listeners{}, &sink.Recorder{}
	s := NewServices(next, ServicesOptions{Listen: l.listen})
	defer s.Close()
	weight := func(address string) string {
		_, header, _ := l.get(t, address)
		return header.Get("X-Load-Balancing-Endpoint-Weight")
	}
	broken := errors.New("not applied")
	s.SetNode(&model.Node{Name: "node-1"})
	s.SetService(service("web", 32000, 0, 0))
	next.FailNext(broken)
	require.ErrorIs(t, s.Sync(t.Context()), broken)
	require.Empty(t, l.takeLog())
	s.ForceResync()
	require.NoError(t, s.Sync(t.Context()))

	s.SetService(service("web", 32000, 1, 1))
	next.FailNext(&sink.FamilyError{Family: model.IPv6, Err: broken})
	require.ErrorIs(t, s.Sync(t.Context()), broken)
	require.Equal(t, "1", weight("0.0.0.0:32000"))
	require.Equal(t, "0", weight("[::]:32000"), "IPv6 is as it was")
	s.ForceResync()
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, "1", weight("[::]:32000"))

	s.SetService(service("web", 32000, 2, 2))
	port := &sink.PortError{Family: model.IPv6, Err: broken}
	next.FailNext(port)
	require.Equal(t, port, s.Sync(t.Context()))
	require.Equal(t, []string{"2", "2"}, []string{weight("0.0.0.0:32000"), weight("[::]:32000")},
		"a service port that is not applied holds nothing up")
	s.ResyncFailed()
	require.NoError(t, s.Sync(t.Context()))

	s.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	next.FailNext(&sink.FamilyError{Family: model.IPv4, Err: broken})
	require.Error(t, s.Sync(t.Context()))
	require.Equal(t, []string{"0.0.0.0:32000"}, l.addresses())
	s.ForceResync()
	require.NoError(t, s.Sync(t.Context()))
	require.Empty(t, l.addresses())
	require.Empty(t, next.Violations(), "everything is passed on, in order")
	require.NotNil(t, next.Node())
}

func TestEverythingEndsWithTheContextOrWithClose(t *testing.T) {
	l := &listeners{}
	s := NewServices(nil, ServicesOptions{Listen: l.listen})
	s.SetService(service("web", 32000, 1, 1))
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, s.Sync(ctx))
	cancel()
	for _, i := range s.open {
		for _, opened := range i.listeners {
			<-opened.done
		}
	}
	require.Empty(t, l.addresses())
	require.NoError(t, s.Sync(ctx))
	require.Empty(t, l.addresses(), "the context has ended")

	s.SetService(service("web", 32000, 2, 1))
	require.NoError(t, s.Sync(t.Context()))
	require.Len(t, l.addresses(), 2, "with another context it goes on")
	s.Close()
	require.Empty(t, l.addresses())
	require.NoError(t, s.Sync(t.Context()))
	require.Empty(t, l.addresses(), "closed is closed")
}

func TestBadCallsDoNoHarm(t *testing.T) {
	s := NewServices(nil, ServicesOptions{})
	defer s.Close()
	s.SetService(nil)
	s.SetEndpoint(nil)
	s.DeleteEndpoint(model.EndpointKey{})
	s.DeleteService(model.ServiceName{Namespace: "no", Name: "such"})
	require.NoError(t, s.Sync(t.Context()))
}
