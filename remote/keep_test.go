package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// reset1 is the state of node n1: a service with one endpoint at each of the addresses, the first of which is the
// node's own.
func reset1(addresses ...string) *remotev1.Update {
	reset := &remotev1.Update{Kind: remotev1.Kind_RESET, InstanceID: "i", HeartbeatMillis: 60000,
		Node: &remotev1.Node{Name: "n1", Ips: [][]byte{{192, 0, 2, 1}}},
		Services: []*remotev1.ServiceChange{{Namespace: "default", Name: "a", Whole: true,
			Service: service1()}},
		Own: []*remotev1.NodePart{{Namespace: "default", Name: "a"}}, OwnReset: true, Sync: &remotev1.Sync{Revision: 1}}
	for i, a := range addresses {
		ep := &remotev1.Endpoint{Port: "http", Protocol: remotev1.Protocol_TCP,
			Address: netip.MustParseAddr(a).AsSlice(), TargetPort: 80, Sets: 1, Conditions: 3}
		if i == 0 {
			own := proto.Clone(ep).(*remotev1.Endpoint)
			own.Local = true
			reset.Own[0].Endpoints = append(reset.Own[0].Endpoints, own)
		}
		reset.Services[0].Endpoints = append(reset.Services[0].Endpoints, ep)
	}
	return reset
}

// viewOf returns a client that has a state.
func viewOf(t testing.TB, reset *remotev1.Update) *view {
	v := newView(stateN1)
	var d wire.Decoder
	var batch wire.Batch
	_, err := d.Update(wire.Encode(reset).Bytes(), nil, &batch)
	require.NoError(t, err)
	require.NoError(t, d.Err())
	require.NoError(t, v.take(t.Context(), remotev1.Kind_RESET, batch))
	return v
}

func (v *view) kept(at time.Time) *keptState {
	return &keptState{at: at, clusters: []string{"a", "b"}, seen: wire.Mark{1, 1<<64 - 1}, node: v.node,
		shared: v.shared.snapshot, own: v.own}
}

var helloN1 = &remotev1.Hello{Node: "n1", Options: wire.EncodeOptions(stateN1)}

func cluster(texts ...string) func() ([]string, error) {
	return func() ([]string, error) { return texts, nil }
}

func keepIn(dir string) *Keep {
	return Keep{File: filepath.Join(dir, "state"), Cluster: cluster("b", "c")}.withDefaults()
}

// The state that is read equals the one that was written, by its digests, and for the sink.
func TestAKeptStateIsReadAsItWas(t *testing.T) {
	k, at := keepIn(t.TempDir()), time.Now()
	v := viewOf(t, reset1("10.0.0.1", "10.0.0.2"))
	b, err := k.encode(helloN1, v.kept(at))
	require.NoError(t, err)
	require.NoError(t, k.write(b))
	info, err := os.Stat(k.File)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())

	read, err := k.read()
	require.NoError(t, err)
	got, batch, err := k.decode(read, helloN1, at.Add(time.Hour))
	require.NoError(t, err)
	assert.True(t, at.Equal(got.At))
	assert.Equal(t, wire.Mark{1, 1<<64 - 1}, got.Seen)
	again := newView(stateN1)
	require.NoError(t, again.take(t.Context(), remotev1.Kind_RESET, batch))
	assert.True(t, proto.Equal(v.digest(), again.digest()))
	assert.Equal(t, contents(v).Endpoints(), contents(again).Endpoints())
	assert.Len(t, contents(again).Endpoints(), 2)
}

// A file is used as a whole or not at all, and the error says what is wrong.
func TestAKeptStateThatIsNotToBeUsed(t *testing.T) {
	at := time.Now()
	k := keepIn(t.TempDir())
	good, err := k.encode(helloN1, viewOf(t, reset1("10.0.0.1")).kept(at))
	require.NoError(t, err)
	encoded := func(hello *remotev1.Hello, at time.Time, clusters ...string) []byte {
		state := viewOf(t, reset1("10.0.0.1")).kept(at)
		state.clusters = clusters
		b, err := k.encode(hello, state)
		require.NoError(t, err)
		return b
	}
	masquerading := proto.Clone(helloN1).(*remotev1.Hello)
	masquerading.Options.MasqueradeAll = true
	for name, c := range map[string]struct {
		content []byte
		reason  string
	}{
		"empty":           {nil, "damaged"},
		"no JSON":         {[]byte("state\n"), "damaged"},
		"newer":           {[]byte(strings.Replace(string(good), `Version":1`, `Version":2`, 1)), "has version 2, not 1"},
		"another cluster": {encoded(helloN1, at, "a", "d"), `belongs to another cluster: ["a" "d"]`},
		"of no cluster":   {encoded(helloN1, at), `belongs to another cluster: []`},
		"another node":    {encoded(&remotev1.Hello{Node: "n2"}, at, "b"), `belongs to another node: "n2"`},
		"other options":   {encoded(masquerading, at, "b"), "belongs to a node with other options"},
		"too old":         {encoded(helloN1, at.Add(-24*time.Hour-time.Second), "b"), "too old"},
		"the future":      {encoded(helloN1, at.Add(time.Hour), "b"), "in the future"},
	} {
		_, _, err := k.decode(c.content, helloN1, at)
		assert.ErrorContains(t, err, c.reason, name)
	}
	for n := range good { // a file that ends there, and one with a flipped bit there
		_, _, err := k.decode(good[:n], helloN1, at)
		require.Error(t, err, n)
		wrong := append([]byte(nil), good...)
		wrong[n] ^= 1
		_, _, err = k.decode(wrong, helloN1, at)
		require.Error(t, err, n)
	}
	for _, skew := range []time.Duration{-maxSkew, 24 * time.Hour} { // the clock may have been set
		_, _, err = k.decode(good, helloN1, at.Add(skew))
		assert.NoError(t, err)
	}
}

// Files of older versions do not record how new their state is, and can still be read.
func TestAKeptStateWithoutAMark(t *testing.T) {
	k, at := keepIn(t.TempDir()), time.Now()
	state := viewOf(t, reset1("10.0.0.1")).kept(at)
	state.seen = wire.Mark{}
	b, err := k.encode(helloN1, state)
	require.NoError(t, err)
	header, _, _ := strings.Cut(string(b), "\n")
	assert.Regexp(t, `^{"keptStateVersion":1,"clusters":\["a","b"\],"node":"n1","at":"[^"]*"}$`, header)
	got, _, err := k.decode(b, helloN1, at)
	require.NoError(t, err)
	assert.Zero(t, got.Seen)
}

// Only a regular file of a limited size is read. A link is replaced, not followed.
func TestAFileThatIsNoneIsNotRead(t *testing.T) {
	dir := t.TempDir()
	k := keepIn(dir)
	_, err := k.read()
	require.ErrorIs(t, err, os.ErrNotExist)
	victim := filepath.Join(dir, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(victim, k.File))
	_, err = k.read()
	require.ErrorContains(t, err, "not a regular file")
	require.NoError(t, k.write([]byte("new")))
	got, err := os.ReadFile(victim)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(got))
	got, err = k.read()
	require.NoError(t, err)
	assert.Equal(t, "new", string(got))

	require.NoError(t, os.Remove(k.File))
	require.NoError(t, os.Mkdir(k.File, 0o700))
	_, err = k.read()
	require.ErrorContains(t, err, "not a regular file")
	require.Error(t, k.write([]byte("new")))
	require.NoError(t, os.Remove(k.File))
	assert.Equal(t, []string{"victim"}, names(t, dir))

	require.NoError(t, os.WriteFile(k.File, nil, 0o600))
	require.NoError(t, os.Truncate(k.File, maxKept+1))
	_, err = k.read()
	require.ErrorContains(t, err, "more than 67108864 bytes")
}

func names(t testing.TB, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Files that killed processes left behind are removed, but not one that another process is writing.
func TestWhatKilledWritersLeftIsRemoved(t *testing.T) {
	dir := t.TempDir()
	k := keepIn(dir)
	left, written := k.File+".1.new", k.File+".2.new"
	for _, f := range []string{left, written} {
		require.NoError(t, os.WriteFile(f, nil, 0o600))
	}
	require.NoError(t, os.Chtimes(left, time.Time{}, time.Now().Add(-time.Hour)))
	require.NoError(t, k.write(nil))
	assert.Equal(t, []string{"state", "state.2.new"}, names(t, dir))
}

// Two processes may share a file: each finds the complete state of one of them.
func TestTwoWritersOfOneFile(t *testing.T) {
	dir := t.TempDir()
	k, at := keepIn(dir), time.Now()
	var wg sync.WaitGroup
	for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
		b, err := k.encode(helloN1, viewOf(t, reset1(address)).kept(at))
		require.NoError(t, err)
		wg.Go(func() {
			for range 50 {
				if err := k.write(b); err != nil {
					t.Error(err)
				}
				read, err := k.read()
				if err == nil {
					_, _, err = k.decode(read, helloN1, at)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	assert.Equal(t, []string{"state"}, names(t, dir))
}

const writerEnv = "KPL_TEST_KEEP_IN"

// TestWriterToBeKilled is not a test: it is the process that the next test kills.
func TestWriterToBeKilled(t *testing.T) {
	dir := os.Getenv(writerEnv)
	if dir == "" {
		return
	}
	k := keepIn(dir)
	addresses := make([]string, 2000)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("10.0.%d.%d", i/250, i%250)
	}
	b, err := k.encode(helloN1, viewOf(t, reset1(addresses...)).kept(time.Now()))
	require.NoError(t, err)
	for {
		require.NoError(t, k.write(b))
		fmt.Println("written")
	}
}

// Whenever a process is killed, the file has a complete state.
func TestAWriterMayBeKilled(t *testing.T) {
	dir := t.TempDir()
	k := keepIn(dir)
	for i := range 10 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWriterToBeKilled$")
		cmd.Env = append(os.Environ(), writerEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := 0; n <= i && lines.Scan(); n++ {
			continue // the next write has begun, or is about to
		}
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it says that the process was killed
		b, err := k.read()
		require.NoError(t, err)
		_, batch, err := k.decode(b, helloN1, time.Now())
		require.NoError(t, err)
		require.Len(t, batch.Services[0][0].Endpoints, 2000)
	}
}

// keptFeed is a running feed of node n1, with its sink and its health.
type keptFeed struct {
	*Feed
	sink   sink.Recorder
	health *health.Proxy
	ready  chan struct{} // closed once the first state is applied
	stop   func()
}

func runKept(t *testing.T, keep Keep, targets ...string) *keptFeed {
	feed, err := NewFeed(Options{Targets: targets, State: stateN1, Keep: &keep})
	require.NoError(t, err)
	f := &keptFeed{Feed: feed, health: health.New(0), ready: make(chan struct{})}
	f.keepEvery, f.maxBackoff = 10*time.Millisecond, 10*time.Millisecond
	ctx, cancel := context.WithCancel(quiet(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: &f.sink, Health: f.health,
			MinInterval: -1, OnReady: func() { close(f.ready) }}))
	})
	f.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(f.stop)
	return f
}

func (f *keptFeed) wave(t *testing.T) []string {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	wave, err := f.sink.NextWave(ctx)
	require.NoError(t, err)
	return wave.Lines()
}

// A node that starts without a server applies the kept state, reports that, and gets only the changes from the first
// server.
func TestANodeStartsWithoutAServer(t *testing.T) {
	keep := Keep{File: filepath.Join(t.TempDir(), "state"), After: time.Millisecond}
	first := runKept(t, keep, serveHung(t, socket(t), reset1("10.0.0.1", "10.0.0.2")))
	first.wave(t)
	want := first.sink.Endpoints()
	first.stop() // this writes the file

	target := socket(t) // without a server yet
	again := runKept(t, keep, target)
	again.wave(t)
	assert.Equal(t, want, again.sink.Endpoints())
	assert.Len(t, want, 2)
	from := again.health.RestoredFrom()
	assert.False(t, from.IsZero())
	<-again.ready // the sink has the wave before that
	answer := httptest.NewRecorder()
	again.health.Healthz().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	assert.Equal(t, 200, answer.Code)
	said := map[string]any{}
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &said))
	assert.Contains(t, said, "restoredStateFrom")
	assert.Contains(t, said, "disconnectedSince")

	serveHung(t, target, reset1("10.0.0.1", "10.0.0.2", "10.0.0.3"))
	lines := again.wave(t)
	require.Len(t, lines, 2, lines)
	assert.Contains(t, lines[0], "10.0.0.3")
	assert.True(t, again.health.RestoredFrom().IsZero())
	again.stop()
	assert.Empty(t, again.sink.Violations())
}

// A state from a file is never written as a newer one, however often the process starts.
func TestARestartLoopDoesNotRenewAKeptState(t *testing.T) {
	keep := Keep{File: filepath.Join(t.TempDir(), "state"), After: time.Millisecond}
	first := runKept(t, keep, serveHung(t, socket(t), reset1("10.0.0.1")))
	first.wave(t)
	first.stop()
	before, err := os.Stat(keep.File)
	require.NoError(t, err)
	for range 5 {
		again := runKept(t, keep, socket(t))
		again.wave(t)
		again.stop()
		after, err := os.Stat(keep.File)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after))
	}
}

// While nothing changes, the file is only written to update its time.
func TestAnUnchangedStateIsWrittenRarely(t *testing.T) {
	feed, err := NewFeed(Options{Targets: []string{"unix:///x"}, State: stateN1, Keep: keepIn(t.TempDir())})
	require.NoError(t, err)
	h := &nodeHandler{end: func() {}}
	now, err := feed.keepNow(h, nil)
	require.NoError(t, err)
	assert.Nil(t, now, "there is nothing to write")
	feed.view, feed.confirmed = viewOf(t, reset1("10.0.0.1")), time.Now()
	first, err := feed.keepNow(h, nil)
	require.NoError(t, err)
	for _, c := range []struct {
		later  time.Duration
		writes bool
	}{{time.Hour, false}, {3 * time.Hour, true}} {
		feed.confirmed = first.at.Add(c.later)
		now, err := feed.keepNow(h, first)
		require.NoError(t, err)
		assert.Equal(t, c.writes, now != first, c.later)
	}
	feed.view.takeOwn(wire.Batch{Own: []wire.Part{{Name: name("a"), Part: &localstate.NodePart{}}}},
		map[model.ServiceName]bool{})
	feed.confirmed = first.at
	now, err = feed.keepNow(h, first)
	require.NoError(t, err)
	assert.NotSame(t, first, now, "what the node has of its own counts")
}

// A program that first needs the node's addresses gets them from the file as well, and continues from that state.
func TestTheNodeComesFromTheFile(t *testing.T) {
	keep := keepIn(t.TempDir())
	keep.After = time.Millisecond
	b, err := keep.encode(helloN1, viewOf(t, reset1("10.0.0.1")).kept(time.Now()))
	require.NoError(t, err)
	require.NoError(t, keep.write(b))
	feed, err := NewFeed(Options{Targets: []string{socket(t)}, State: stateN1, Keep: keep})
	require.NoError(t, err)
	node, err := feed.Node(quiet(t))
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, node.IPs)
	feed.opts.Keep.After = time.Hour // it must not wait a second time
	rec, proxy := &sink.Recorder{}, health.New(0)
	ctx, cancel := context.WithCancel(quiet(t))
	ended := make(chan error, 1)
	go func() { ended <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: rec, Health: proxy}) }()
	_, err = rec.NextWave(t.Context())
	require.NoError(t, err)
	assert.Len(t, rec.Endpoints(), 1)
	assert.False(t, proxy.RestoredFrom().IsZero())
	cancel()
	require.NoError(t, <-ended)
}

func TestWrongKeepOptionsAreRefused(t *testing.T) {
	_, err := NewFeed(Options{Targets: []string{"unix:///x"}, Resume: &Resume{},
		Keep: &Keep{File: "state", MaxAge: -1}})
	for _, want := range []string{"not an absolute path", "negative", "NodeName", "Resume"} {
		assert.ErrorContains(t, err, want)
	}
}
