package remote

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// replace writes a file as a whole.
func replace(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".new", []byte(content), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

// Targets are in a file, or in the files of a directory like that of a mounted ConfigMap. Duplicates count once.
func TestTargetsComeFromFiles(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "..data")
	require.NoError(t, os.Mkdir(data, 0o700))
	replace(t, filepath.Join(data, "a"), "# zone a\n10.0.0.1:1 # the first\n\n  [2001:db8::1]:1\r\n")
	replace(t, filepath.Join(data, "b"), "unix:///brain.sock\n10.0.0.1:1")
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	replace(t, filepath.Join(dir, ".a.swp"), "what an editor keeps")
	for want, targets := range map[string][]string{
		"10.0.0.1:1 10.0.0.9:1 [2001:db8::1]:1 unix:///brain.sock": {"file://" + dir, "10.0.0.9:1"},
		"10.0.0.1:1 unix:///brain.sock":                            {"file://" + dir + "/b"},
	} {
		opts := Options{Targets: targets, Insecure: true}
		require.NoError(t, opts.validate())
		got, err := opts.targetsNow()
		require.NoError(t, err)
		assert.Equal(t, strings.Fields(want), got)
	}
}

// A file with anything wrong in it is not used at all, and the error names it.
func TestWrongFilesOfTargets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "targets")
	opts := Options{Targets: []string{"file://" + file}}
	_, err := opts.targetsNow()
	require.ErrorIs(t, err, os.ErrNotExist)
	for content, want := range map[string]string{
		"":                                "no targets",
		"unix:///x\nbrain:1":              file + `: target "brain:1" is not ADDRESS:PORT`,
		"file:///x":                       `target "file:///x"`,
		"unix:///x\n10.0.0.1:1":           "neither TLS nor Insecure is set",
		"dns:///brain":                    "is not dns:///NAME:PORT",
		strings.Repeat("#", maxTargets+1): "has 1048577 bytes",
	} {
		replace(t, file, content)
		_, err := opts.targetsNow()
		require.ErrorContains(t, err, want)
	}
	_, err = NewFeed(Options{Targets: []string{"file://targets", "dns://x"}, Insecure: true})
	require.ErrorContains(t, err, "the path has to be absolute")
	require.ErrorContains(t, err, "is not dns:///NAME:PORT")
}

// A feed leaves a server that is removed from its file for one that is in it. If the file is missing or invalid, it
// stays where it is.
func TestAFeedFollowsItsFile(t *testing.T) {
	visits := make(chan string, 100)
	server := func(name string) string {
		return (&hung{says: []*remotev1.Update{reset1("10.0.0.1")}, visited: func() { visits <- name }}).serve(t, socket(t))
	}
	a, b := server("a"), server("b")
	file := filepath.Join(t.TempDir(), "targets")
	feed, err := NewFeed(Options{Targets: []string{"file://" + file}, State: stateN1})
	require.NoError(t, err)
	feed.maxBackoff, feed.readTargets = time.Millisecond, time.Millisecond
	rec, proxy := &sink.Recorder{}, health.New(0)
	visited := func() string {
		select {
		case name := <-visits:
			return name
		case <-time.After(testTimeout):
			return "nobody"
		}
	}
	ctx, cancel := context.WithCancel(quiet(t))
	ended := make(chan error, 1)
	go func() { ended <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: rec, Health: proxy}) }()
	require.Eventually(t, func() bool { return !proxy.DisconnectedSince().IsZero() }, testTimeout, time.Millisecond)
	replace(t, file, a) // created after the feed
	assert.Equal(t, "a", visited())
	replace(t, file, a+"\n"+b) // a is still in it
	replace(t, file, "nonsense")
	require.NoError(t, os.Remove(file))
	_, err = rec.NextWave(t.Context())
	require.NoError(t, err)
	replace(t, file, b)
	assert.Equal(t, "b", visited())
	cancel()
	require.NoError(t, <-ended)
	assert.Empty(t, visits, "it goes nowhere without a reason")
}

// A program that has to know which addresses a feed connects to opens the connections itself.
func TestDialIsGivenTheAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ends := status.Error(codes.Unavailable, "that is all")
	server := &hung{says: []*remotev1.Update{reset1("10.0.0.1")}, ends: ends}
	server.serveOn(t, ln)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	for target, want := range map[string]string{
		ln.Addr().String():         "tcp " + ln.Addr().String(),
		"dns:///localhost:" + port: "tcp " + ln.Addr().String(),
		server.serve(t, socket(t)): "",
	} {
		var mu sync.Mutex
		var dialed []string
		d := newDialer(t)
		d.client.opts = Options{Targets: []string{target}, Insecure: true, State: stateN1,
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				dialed = append(dialed, network+" "+address)
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}}
		require.ErrorContains(t, d.stream(quiet(t), target), "that is all", target)
		mu.Lock()
		if want == "" {
			require.Empty(t, dialed, target)
		} else {
			require.Contains(t, dialed, want, target)
		}
		mu.Unlock()
	}
}

// A target of the form dns:///NAME:PORT is resolved.
func TestANameIsResolved(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &hung{says: []*remotev1.Update{reset1("10.0.0.1")}, ends: status.Error(codes.Unavailable, "that is all")}
	server.serveOn(t, ln)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	d := newDialer(t)
	d.client.opts = Options{Targets: []string{"dns:///localhost:" + port}, Insecure: true, State: stateN1}
	require.NoError(t, d.client.opts.validate())
	require.ErrorContains(t, d.stream(quiet(t), d.client.opts.Targets[0]), "that is all")
	assert.NotNil(t, d.client.view.node)
}
