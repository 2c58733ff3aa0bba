package userspace_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// BenchmarkBesideNFT compares the backend with nft, and with connections made directly to the endpoint. It needs root.
func BenchmarkBesideNFT(b *testing.B) {
	for _, way := range []string{"direct", "nft", "userspace"} {
		b.Run("way="+way, func(b *testing.B) {
			b.Run("throughput", func(b *testing.B) { newWay(b, way).throughput(b) })
			b.Run("latency", func(b *testing.B) { newWay(b, way).latency(b) })
			b.Run("connections", func(b *testing.B) { newWay(b, way).connections(b) })
		})
	}
}

// way is a rig with one of the ways from the client to the server.
type way struct {
	*rig
	to        netip.AddrPort
	processes []int // their processor time is measured
}

func newWay(b *testing.B, name string) *way {
	w := &way{newRig(b), rigService, []int{os.Getpid()}}
	switch name {
	case "direct":
		w.to = rigEndpoint
	case "nft":
		var backend *nft.Backend
		w.node.Do(func() (err error) {
			backend, err = nft.New(b.Context(), nft.Options{Common: frontend.Common{
				Families: []model.Family{model.IPv4}}})
			if err != nil {
				return err
			}
			describe(backend)
			return backend.Sync(b.Context())
		})
		b.Cleanup(func() { require.NoError(b, backend.Close()) })
	case "userspace":
		w.processes = append(w.processes, w.start())
	}
	return w
}

// cpu returns the processor time of client, server and proxy. It includes the kernel's work in their context, but not
// that of its own threads.
func (w *way) cpu() (total time.Duration) {
	for _, pid := range w.processes {
		var t unix.Timespec
		require.NoError(w.t, unix.ClockGettime(int32(^pid<<3|2), &t)) // see clock_getcpuclockid(3)
		total += time.Duration(t.Nano())
	}
	return total
}

// throughput sends a mebibyte per operation over one connection.
func (w *way) throughput(b *testing.B) {
	received := make(chan int64, 1)
	w.serve(func(c *net.TCPConn) {
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 1<<18))
		received <- n
		_ = c.Close()
	})
	var c *net.TCPConn
	w.client.Do(func() (err error) {
		c, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(w.to))
		return err
	})
	defer c.Close()
	chunk := make([]byte, 1<<20)
	b.SetBytes(int64(len(chunk)))
	sent := int64(0)
	before := w.cpu()
	for b.Loop() {
		n, err := c.Write(chunk)
		require.NoError(b, err)
		sent += int64(n)
	}
	require.NoError(b, c.CloseWrite())
	require.Equal(b, sent, <-received)
	b.ReportMetric((w.cpu()-before).Seconds()/(float64(sent)/1e9), "cpu-s/GB")
}

// latency makes one connection at a time, and measures each until the first byte is back.
func (w *way) latency(b *testing.B) {
	w.serve(oneByte)
	var times []time.Duration
	w.client.Do(func() error {
		for b.Loop() {
			begin := time.Now()
			err := connectOnce(w.to)
			times = append(times, time.Since(begin))
			if err != nil {
				return err
			}
		}
		return nil
	})
	slices.Sort(times)
	for _, p := range []int{50, 99} {
		at := times[min(len(times)*p/100, len(times)-1)]
		b.ReportMetric(float64(at.Microseconds()), fmt.Sprintf("p%d-us", p))
	}
}

// connections makes a thousand connections per operation, eight at a time.
func (w *way) connections(b *testing.B) {
	const each, clients = 1000, 8
	w.serve(oneByte)
	before := w.cpu()
	for b.Loop() {
		var all sync.WaitGroup
		failed := make([]error, clients)
		for i := range clients {
			all.Go(func() {
				failed[i] = osthread.In(w.client.FD(), func() error {
					for range each / clients {
						if err := connectOnce(w.to); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
		all.Wait()
		require.NoError(b, errors.Join(failed...))
	}
	made := float64(b.N * each)
	b.ReportMetric(made/b.Elapsed().Seconds(), "conns/s")
	b.ReportMetric(float64((w.cpu()-before).Microseconds())/made, "cpu-us/conn")
}

// oneByte answers the first byte with a byte, and closes the connection after the client.
func oneByte(c *net.TCPConn) {
	buffer := make([]byte, 1)
	if _, err := io.ReadFull(c, buffer); err == nil {
		_, _ = c.Write(buffer)
	}
	_, _ = c.Read(buffer)
	_ = c.Close()
}

// connectOnce connects from the thread's namespace, exchanges a byte, and resets the connection, so that no port stays
// in TIME_WAIT.
func connectOnce(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return fmt.Errorf("connect to %v: %w", to, err)
	}
	if _, err := unix.Write(fd, []byte{1}); err != nil {
		return err
	}
	if n, err := unix.Read(fd, make([]byte, 1)); n != 1 {
		return fmt.Errorf("no answer from %v: %w", to, err)
	}
	return nil
}

// BenchmarkTenThousandServices is the first Sync with 10,000 services of one endpoint: 10,000 listeners, or elements of
// nftables maps.
func BenchmarkTenThousandServices(b *testing.B) {
	size := backendtest.ClusterSize{Services: 10000, Endpoints: 1}
	families := []model.Family{model.IPv4}
	run := func(b *testing.B, start func() backendtest.Backend) {
		for b.Loop() {
			b.StopTimer()
			before := resident(b)
			backend := start()
			size.Set(backend)
			b.StartTimer()
			require.NoError(b, backend.Sync(b.Context()))
			b.StopTimer()
			b.ReportMetric(resident(b)-before, "MiB")
			require.NoError(b, backend.Close())
			b.StartTimer()
		}
	}
	b.Run("nft", func(b *testing.B) {
		testkit.EnterNamespace(b)
		run(b, func() backendtest.Backend {
			n, err := nft.New(b.Context(), nft.Options{Common: frontend.Common{Families: families}})
			require.NoError(b, err)
			return n
		})
	})
	b.Run("userspace", func(b *testing.B) {
		testkit.EnterNamespace(b)
		var limit unix.Rlimit
		require.NoError(b, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
		need.That(b, limit.Cur > uint64(size.Services)+100, "10,100 file descriptors (ulimit -n)")
		require.NoError(b, configure("lo", ""))
		routes, err := newLocalRoutes()
		require.NoError(b, err)
		defer routes.handle.Close()
		run(b, func() backendtest.Backend {
			// Listeners would get a quarter of the file descriptors, and one namespace three quarters of that.
			o := userspace.Options{Addresses: routes, Common: frontend.Common{Families: families}}.
				With(userspace.Tuning{MaxListeners: 2 * size.Services})
			u, err := userspace.New(b.Context(), o)
			require.NoError(b, err)
			return u
		})
	})
}

// resident returns the resident memory of the process in MiB, after a garbage collection.
func resident(b *testing.B) float64 {
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	require.NoError(b, err)
	return kib / 1024
}
