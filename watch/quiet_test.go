package watch

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/internal/watchhealth"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

// alert is a Handler that knows when it last heard of the API server.
type alert struct {
	*recorder
	heard watchhealth.Tracker
}

func (a *alert) Heard(kind metav1.Object, version string) { a.heard.Heard(kind, version, time.Now()) }
func (a *alert) Bookmarks(kind metav1.Object)             { a.heard.Bookmarks(kind) }

// silence returns for how long an expected sign of life has been missing.
func (a *alert) silence() time.Duration {
	_, at, quiet := a.heard.Oldest()
	return time.Since(at) - quiet
}

// withoutBookmarks is a connection to a server that sends no bookmarks, like old ones and some aggregated ones.
type withoutBookmarks struct{ http.RoundTripper }

func (w withoutBookmarks) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	query := r.URL.Query()
	query.Del("allowWatchBookmarks")
	r.URL.RawQuery = query.Encode()
	return w.RoundTripper.RoundTrip(r)
}

// TestADeadWatchIsToldFromAQuietOne: a server that sends bookmarks counts as silent after minutes. A server that does
// not counts as silent only if it does not even begin new watches after the old ones have timed out.
func TestADeadWatchIsToldFromAQuietOne(t *testing.T) {
	const missed = 3 * time.Minute
	for name, c := range map[string]struct{ bookmarks, streams bool }{
		"with bookmarks":                {bookmarks: true},
		"with bookmarks, streams lists": {bookmarks: true, streams: true},
		"without bookmarks":             {},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t, service("a"))
				if !c.streams {
					s.setRefuse(noWatchList)
				}
				config := s.Config()
				if !c.bookmarks {
					config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return withoutBookmarks{rt} })
				}
				client, err := kubernetes.NewForConfig(config)
				require.NoError(t, err)
				a := &alert{recorder: newRecorder(t)}
				start(t, telling{newClientset(t, client, ClientsetOptions{}), a}, "", a.recorder)
				a.waitSynced()
				for range 60 {
					if c.bookmarks {
						s.Bookmark()
					}
					time.Sleep(time.Minute) // virtual
					require.Less(t, a.silence(), missed)
				}
				synctest.Wait()
				_, _, quiet := a.heard.Oldest()
				assert.Equal(t, c.bookmarks, quiet == 0)

				s.SetFaults(func(ctx context.Context, _ apiserver.Request) apiserver.Fault { // it hangs
					<-ctx.Done()
					return apiserver.Fault{Err: ctx.Err()}
				})
				since := time.Now()
				for a.silence() <= missed {
					time.Sleep(time.Minute)
					require.Less(t, time.Since(since), 25*time.Minute)
				}
				if c.bookmarks {
					assert.Less(t, time.Since(since), 15*time.Minute)
				}
			})
		})
	}
}

// A streamed list ends with a bookmark. A change is not one.
func TestWhatShowsThatAServerSendsBookmarks(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(t *testing.T, s *nameStore)
		want time.Duration
	}{
		"nothing": {func(*testing.T, *nameStore) {}, watchhealth.QuietWatch},
		"changes": {func(t *testing.T, s *nameStore) {
			require.NoError(t, s.Add(service("b")))
			s.UpdateResourceVersion("2")
			require.NoError(t, s.Delete(service("b")))
			s.UpdateResourceVersion("3")
		}, watchhealth.QuietWatch},
		"a bookmark": {func(_ *testing.T, s *nameStore) { s.UpdateResourceVersion("2") }, 0},
		"a streamed list": {func(t *testing.T, s *nameStore) {
			s.streamed.Store(true)
			require.NoError(t, s.Replace(nil, "2"))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := &alert{recorder: newRecorder(t)}
			s := newNameStore(services, a, func() {})
			require.NoError(t, s.Replace([]any{&corev1.Service{}}, "1"))
			c.do(t, s)
			_, _, quiet := a.heard.Oldest()
			assert.Equal(t, c.want, quiet)
		})
	}
}
