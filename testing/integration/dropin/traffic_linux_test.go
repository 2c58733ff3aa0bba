package dropin_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// onThread runs f in a namespace, on a thread that ends with it, and waits for it.
func onThread(ns *testkit.Namespace, f func()) {
	if err := osthread.In(ns.FD(), func() error { f(); return nil }); err != nil {
		panic(err) // the namespace lasts as long as the test
	}
}

// reply is the answer of a pod's server.
type reply struct {
	pod    string
	client string // the address that the connection came from
}

// errLost is the error of a connection that was established, but lost its first packet.
var errLost = errors.New("the first packet got lost")

// firstRetry is the time after which the kernel sends the first packet of a connection again.
const firstRetry = time.Second

// connect connects to an address from the thread's namespace, and reads the answer.
func connect(address string, timeout time.Duration) (r reply, err error) {
	begin := time.Now()
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	if time.Since(begin) >= firstRetry {
		if err := retransmitted(conn); err != nil {
			return r, err
		}
	}
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return r, err
	}
	said, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return r, err
	}
	var found bool
	if r.pod, r.client, found = strings.Cut(strings.TrimSuffix(said, "\n"), " "); !found {
		return r, fmt.Errorf("%q is not what a pod says", said)
	}
	return r, nil
}

// retransmitted returns an error if a packet of a connection was sent again: a lost packet is a failure, although TCP
// recovers from it.
func retransmitted(conn net.Conn) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	controlled := raw.Control(func(fd uintptr) {
		info,
			err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if controlled != nil || err != nil {
		return fmt.Errorf("TCP_INFO: %w %w", controlled, err)
	}
	if info.Total_retrans > 0 {
		return errLost
	}
	return nil
}

// ask asks once, from a namespace.
func ask(ns *testkit.Namespace, address string) (r reply, err error) {
	onThread(ns, func() { r, err = connect(address, time.Second) })
	return r, err
}

// await asks until the answer is as expected.
func await(t *testing.T, what string, ns *testkit.Namespace, address string, ok func(reply, error) bool) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); ; {
		r, err := ask(ns, address)
		if ok(r, err) {
			return
		}
		if time.Now().After(deadline) {
			require.Fail(t, "in vain: "+what, "at %s, the last answer: %+v %v", address, r, err)
		}
		time.Sleep(5 * time.Millisecond) // nothing signals when packets would get through
	}
}

// maxConnections bounds the connections of one client of a load.
const maxConnections = 20000

// load has clients that open new connections to services all the time.
type load struct {
	t       *testing.T
	end     chan struct{}
	clients sync.WaitGroup
	started []*loadClient
}

type loadClient struct {
	name string
	done atomic.Int64 // connections

	mu       sync.Mutex
	failures []string
	pods     map[string]int
}

func newLoad(t *testing.T) *load {
	l := &load{t: t, end: make(chan struct{})}
	t.Cleanup(func() { l.stop() })
	return l
}

// client starts a client in a namespace that connects to the addresses in turn.
func (l *load) client(name string, ns *testkit.Namespace, addresses ...string) {
	c := &loadClient{name: name, pods: map[string]int{}}
	l.started = append(l.started, c)
	l.clients.Go(func() {
		onThread(ns, func() {
			for n := range maxConnections {
				select {
				case <-l.end:
					return
				default:
				}
				address := addresses[n%len(addresses)]
				begin := time.Now()
				r, err := connect(address, time.Minute) // a lost packet is a failure much sooner
				c.mu.Lock()
				if err != nil {
					c.failures = append(c.failures,
						fmt.Sprintf("%s to %s after %v: %v", begin.Format("05.000"), address, time.Since(begin), err))
				}
				c.pods[r.pod]++
				c.mu.Unlock()
				c.done.Add(1)
				time.Sleep(2 * time.Millisecond) // leave the processors to the others
			}
		})
	})
}

// more waits until each client has made more connections.
func (l *load) more(connections int64) {
	l.t.Helper()
	for _, c := range l.started {
		goal := c.done.Load() + connections
		require.LessOrEqual(l.t, goal, int64(maxConnections), "%s: the test takes too many connections", c.name)
		for deadline := time.Now().Add(waitTimeout); c.done.Load() < goal; time.Sleep(time.Millisecond) {
			require.True(l.t, time.Now().Before(deadline), "%s has stopped", c.name)
		}
	}
}

// stop ends the clients.
func (l *load) stop() {
	select {
	case <-l.end:
	default:
		close(l.end)
	}
	l.clients.Wait()
}

// assertNoFailure ends the clients and fails the test for each connection that has failed.
func (l *load) assertNoFailure() {
	l.t.Helper()
	l.stop()
	var total int64
	for _, c := range l.started {
		assert.Empty(l.t, c.failures, c.name)
		assert.Less(l.t, c.done.Load(), int64(maxConnections), "%s did not last to the end", c.name)
		total += c.done.Load()
	}
	l.t.Logf("%d connections by %d clients", total, len(l.started))
}
