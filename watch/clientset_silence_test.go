package watch

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

// pastSilence is the latest time at which a server that sends bookmarks has been asked, and a list is complete.
const pastSilence = silentAfter + silentAfter/3 + 5*time.Second

// bookmarking has the server send a bookmark every minute, until the test ends.
func (s *apiServer) bookmarking() {
	go func() {
		for {
			select {
			case <-time.After(time.Minute):
				s.Bookmark()
			case <-s.t.Context().Done():
				return
			}
		}
	}()
}

// fromTheFuture reports whether a watch asks for changes after a version that the server has not reached. Real servers
// are silent then.
func (s *apiServer) fromTheFuture(r apiserver.Request) bool {
	version, _ := strconv.ParseInt(r.Options.ResourceVersion, 10, 64)
	return r.Verb == "watch" && !r.StreamsList() && version > s.Version()
}

// asks reports whether a request only asks for the current version.
func asks(r apiserver.Request) bool { return r.Verb == "list" && r.Options.Limit == 1 }

// since returns the requests after the first n.
func (s *apiServer) since(n int) []apiserver.Request { return s.Requests()[n:] }

// A server that was restored from a backup sends nothing to clients that know a higher version: they list anew, and
// find out what has changed and what was deleted.
func TestARestoredServerIsListedAnew(t *testing.T) {
	const withoutBookmarksToo = pastSilence + quietWatch + quietWatch/3
	for name, c := range map[string]struct {
		streams, bookmarks bool
		within             time.Duration
	}{
		"a server that streams lists":         {streams: true, bookmarks: true, within: pastSilence},
		"a server that does not stream lists": {bookmarks: true, within: pastSilence + time.Minute}, // the first
		"a server that sends no bookmarks":    {within: withoutBookmarksToo},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t, service("a"), service("goes"), slice("a-1"), node("n1"), serviceCIDR("kubernetes"))
				s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
					f := apiserver.Fault{Silent: s.fromTheFuture(r)}
					if !c.streams {
						f.Err = noWatchList(r)
					}
					return f
				})
				config := s.Config()
				if !c.bookmarks {
					config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return withoutBookmarks{rt} })
				}
				client, err := kubernetes.NewForConfig(config)
				require.NoError(t, err)
				for range 100 {
					s.Bookmark()
				}
				s.bookmarking()
				r := newRecorder(t)
				_, logs := startLogged(t, newClientset(t, client, ClientsetOptions{}), "n1", r)
				r.waitSynced()
				time.Sleep(3 * time.Minute) // virtual
				before := len(s.Requests())
				s.Restore()
				restored := time.Now()
				s.remove(service("goes"))
				s.apply(service("comes"))
				all := []string{"endpointslices.discovery.k8s.io default/a-1", "nodes n1",
					"servicecidrs.networking.k8s.io kubernetes", "services default/a", "services default/comes"}
				r.waitFor(all...)
				assert.LessOrEqual(t, time.Since(restored), c.within)
				time.Sleep(c.within) // virtual: the others
				for _, q := range s.since(before) {
					if q.Verb == "list" || q.StreamsList() {
						version, _ := strconv.ParseInt(q.Options.ResourceVersion, 10, 64)
						assert.LessOrEqual(t, version, s.Version(), "%s: the version of before", q)
						assert.NotEqual(t, "0", q.Options.ResourceVersion, "%s: what any replica has", q)
					}
				}
				assert.Equal(t, 4, countIn(logs(), "The API server is silent; listing anew"), "once for each kind")

				s.apply(service("later"))
				synctest.Wait()
				r.waitFor(append(all, "services default/later")...)
				before = len(s.Requests())
				time.Sleep(2 * time.Hour) // virtual
				for _, q := range s.since(before) {
					assert.False(t, c.bookmarks && q.Verb == "list", "the silence is over")
				}
				assert.Equal(t, 4, countIn(logs(), "The API server is silent; listing anew"))
				r.mu.Lock()
				defer r.mu.Unlock()
				assert.Equal(t, map[kind]int{services: 1, endpointSlices: 1, serviceCIDRs: 1, nodes: 1}, r.silent)
			})
		})
	}
}

func TestAQuietClusterWithBookmarksCostsNothing(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), slice("a-1"), node("n1"), serviceCIDR("kubernetes"))
		r := newRecorder(t)
		s.bookmarking()
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
		r.waitSynced()
		synctest.Wait()
		before := len(s.Requests())
		time.Sleep(24 * time.Hour) // virtual
		after := s.since(before)
		for _, q := range after {
			assert.Equal(t, "watch", q.Verb)
			assert.False(t, q.StreamsList(), "only what has timed out is begun again")
		}
		assert.LessOrEqual(t, len(after), 4*24*12)
	})
}

// Nothing arrives, although the server has changes: the server is asked for its version with growing pauses, and
// finally the objects are listed anew. Any event of a watch ends that.
func TestSilenceIsAskedWithGrowingPauses(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, service("a"))
		silent := apiserver.Fault{Silent: true}
		s.bookmarking()
		r := newRecorder(t)
		var mu sync.Mutex
		var asked []time.Time
		var lists int
		onRequest := func() {
			asked, lists = nil, 0
			s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case kindOfRequest(r) != services:
				case asks(r):
					asked = append(asked, time.Now())
				case r.StreamsList():
					lists++
				}
				return silent
			})
		}
		onRequest()
		begin := time.Now()
		_, logs := startLogged(t, newClientset(t, s.client(), ClientsetOptions{NoServiceCIDRs: true}), "", r)
		time.Sleep(7 * time.Hour) // virtual
		synctest.Wait()
		mu.Lock()
		require.Greater(t, len(asked), 8)
		last := begin
		for i, pause := range []time.Duration{silentAfter, 3 * time.Minute, 6 * time.Minute, 12 * time.Minute,
			24 * time.Minute, 48 * time.Minute, time.Hour, time.Hour} {
			assert.GreaterOrEqual(t, asked[i].Sub(last), pause)
			assert.LessOrEqual(t, asked[i].Sub(last), pause+pause/3+2*time.Second, "and the list that followed")
			last = asked[i]
		}
		assert.Greater(t, lists, 3)
		assert.Less(t, lists, len(asked), "at first the watch is begun again")
		assert.Equal(t, 2, countIn(logs(), "The API server is silent; listing anew"), "once for each kind")

		mu.Unlock()
		s.SetFaults(nil)
		s.Cut()
		time.Sleep(10 * time.Minute) // virtual
		onRequest()
		s.Cut()
		begin = time.Now()
		time.Sleep(pastSilence) // virtual
		mu.Lock()
		defer mu.Unlock()
		require.NotEmpty(t, asked)
		assert.GreaterOrEqual(t, asked[0].Sub(begin), silentAfter-time.Minute, "since the last bookmark")
	})
}

// After a watch died, changes still arrive: another one begins where it ended.
func TestADeadWatchIsBegunAgain(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), slice("a-1"))
		s.bookmarking()
		r := newRecorder(t)
		_, logs := startLogged(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		time.Sleep(2 * time.Minute) // virtual: there have been bookmarks
		var died sync.Map           // of kinds
		s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
			if r.Verb != "watch" {
				return apiserver.Fault{}
			}
			_, before := died.LoadOrStore(kindOfRequest(r), true)
			return apiserver.Fault{Silent: !before}
		})
		s.Cut()
		synctest.Wait()
		before := len(s.Requests())
		s.remove(service("a"))
		begin := time.Now()
		r.waitFor("endpointslices.discovery.k8s.io default/a-1")
		assert.LessOrEqual(t, time.Since(begin), pastSilence)
		time.Sleep(4 * time.Minute) // virtual
		for _, q := range s.since(before) {
			assert.True(t, q.Verb == "watch" && !q.StreamsList() || asks(q), q)
		}
		assert.NotContains(t, logs(), "listing anew")
	})
}

// A server that was away for long may have been restored meanwhile. The pauses have not grown.
func TestAServerThatIsBackIsAskedSoon(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), service("b"), service("goes"))
		for range 1000 {
			s.Bookmark()
		}
		s.bookmarking()
		refuse := s.refuse
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		time.Sleep(2 * time.Minute) // virtual
		s.setRefuse(func(apiserver.Request) error { return syscall.ECONNREFUSED })
		s.Restore()
		s.remove(service("goes"))
		time.Sleep(2 * time.Hour) // virtual
		assert.Contains(t, r.names(), "services default/goes")
		s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
			return apiserver.Fault{Err: refuse(r), Silent: s.fromTheFuture(r)}
		})
		begin := time.Now()
		r.waitFor("services default/a", "services default/b")
		assert.LessOrEqual(t, time.Since(begin), askPause+askPause/3+time.Minute)
	})
}

// The next step depends on the server's answer when it is asked for its version.
func TestWhatFollowsFromASilence(t *testing.T) {
	const long = quietWatch + silentAfter + time.Second
	for name, c := range map[string]struct {
		current        string
		err            error
		bookmarks      bool
		streams        bool // a list is being streamed
		age            time.Duration
		stopped, lists bool
	}{
		"a lower version":                       {current: "90", stopped: true, lists: true},
		"a lower version, with bookmarks":       {current: "90", bookmarks: true, stopped: true, lists: true},
		"the same version":                      {current: "100", bookmarks: true, age: long},
		"a higher version":                      {current: "110", bookmarks: true, stopped: true},
		"a higher version, for long":            {current: "110", bookmarks: true, age: long, stopped: true, lists: true},
		"a higher version, without bookmarks":   {current: "110", age: long, stopped: true},
		"a version that cannot be compared":     {current: "x", bookmarks: true, stopped: true, lists: true},
		"no version":                            {current: "", bookmarks: true, age: long},
		"no answer":                             {current: "90", err: errors.New("away"), bookmarks: true, age: long},
		"a higher version, while it is listing": {current: "110", bookmarks: true, streams: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := &silence{}, apiwatch.NewFake()
				s.listed("99", false)
				s.heard("100", c.bookmarks)
				s.begun(w, c.streams)
				time.Sleep(max(c.age, silentAfter)) // virtual
				logger, logs := testLogger(t)
				s.ask(contextWith(t, logger), func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					assert.Equal(t, metav1.ListOptions{Limit: 1}, o)
					return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: c.current}}, c.err
				})
				assert.Equal(t, c.stopped, w.IsStopped())
				assert.Equal(t, c.lists, s.listsAnew())
				assert.Equal(t, c.lists, strings.Contains(logs(), "listing anew"))
			})
		})
	}
}

// An answer that arrives after the watch has sent something is out of date.
func TestASilenceThatEndsMeanwhileIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := &silence{}, apiwatch.NewFake()
		s.heard("100", true)
		s.begun(w, false)
		time.Sleep(silentAfter) // virtual
		s.ask(t.Context(), func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			time.Sleep(time.Second) // virtual
			s.heard("101", true)
			return &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "90"}}, nil
		})
		assert.False(t, w.IsStopped())
		assert.False(t, s.listsAnew())
	})
}
