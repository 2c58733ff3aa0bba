package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// watched returns the events of a watch of all Services that has everything that there is, as "TYPE name". The server
// has begun it: the client gets its answer a little earlier.
func watched(t *testing.T, client kubernetes.Interface, o metav1.ListOptions) <-chan string {
	w, err := client.CoreV1().Services("").Watch(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	events := make(chan string)
	go func() {
		defer close(events)
		for e := range w.ResultChan() {
			text := string(e.Type)
			switch o := e.Object.(type) {
			case *corev1.Service:
				text += " " + o.Name
				if e.Type == apiwatch.Bookmark {
					text += o.ResourceVersion + o.Annotations[metav1.InitialEventsAnnotationKey]
				}
			case *metav1.Status:
				text += " " + string(o.Reason)
			}
			select {
			case events <- text:
			case <-t.Context().Done():
				return
			}
		}
	}()
	synctest.Wait()
	return events
}

// After Restore, clients that knew higher versions have to list again, and then follow lower ones.
func TestRestoredServersHaveLowerVersions(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		for range 50 {
			require.NoError(t, s.Set(service("a", "10.96.0.1")))
		}
		before := fmt.Sprint(s.Version())
		events := watched(t, client, metav1.ListOptions{ResourceVersion: before})
		s.Restore()
		_, open := <-events
		assert.False(t, open, "the watch goes on")
		for _, version := range []string{before, "2"} {
			assert.Equal(t, "ERROR Expired", <-watched(t, client, metav1.ListOptions{ResourceVersion: version}))
		}
		list, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		assert.Equal(t, "4", list.ResourceVersion)
		assert.Len(t, list.Items, 2)
		events = watched(t, client, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		require.NoError(t, s.Set(service("c", "10.96.0.3")))
		assert.Equal(t, "ADDED c", <-events)
	})
}

// Like real servers, one that was restored may say nothing to a watch from a version that it has not reached. A watch
// that died after its initial objects does not end either, before its time.
func TestASilentWatchSendsNothingUntilItTimesOut(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		for range 50 {
			require.NoError(t, s.Set(service("a", "10.96.0.1")))
		}
		before := fmt.Sprint(s.Version())
		s.Restore()
		s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault { return apiserver.Fault{Silent: true} })
		timeout := int64(60)
		for _, tc := range []struct {
			o    metav1.ListOptions
			want []string
		}{
			{metav1.ListOptions{ResourceVersion: before}, nil},
			{metav1.ListOptions{ResourceVersion: fmt.Sprint(s.Version())}, nil},
			{metav1.ListOptions{}, []string{"ADDED a", "ADDED b"}},
			{metav1.ListOptions{ResourceVersion: "1"}, []string{"ERROR Expired"}},
		} {
			tc.o.TimeoutSeconds, tc.o.AllowWatchBookmarks = &timeout, true
			begin := time.Now()
			events := watched(t, client, tc.o)
			synctest.Wait()
			require.NoError(t, s.Set(service("c", "10.96.0.3")))
			s.Bookmark()
			var got []string
			for e := range events {
				got = append(got, e)
			}
			assert.Equal(t, tc.want, got, tc.o)
			if tc.o.ResourceVersion != "1" {
				assert.Equal(t, time.Minute, time.Since(begin), tc.o)
			}
			require.NoError(t, s.Delete(service("c", "10.96.0.3")))
		}
	})
}

// bubble runs a test in virtual time, with clients that need no network.
func bubble(t *testing.T, f func(t *testing.T, s *apiserver.Server, client kubernetes.Interface)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := apiserver.New(service("a", "10.96.0.1"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
			service("b", "10.96.0.2"))
		require.NoError(t, err)
		client, err := kubernetes.NewForConfig(s.Config())
		require.NoError(t, err)
		f(t, s, client)
	})
}

func TestAWatchBeginsWhereItIsAskedTo(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		from := fmt.Sprint(s.Version())
		set(t, s, service("c", "10.96.0.3"))
		end := s.Version()
		for _, tc := range []struct {
			name string
			o    metav1.ListOptions
			want []string
		}{
			{"from a version", metav1.ListOptions{ResourceVersion: from}, []string{"ADDED c"}},
			{"without a version", metav1.ListOptions{}, []string{"ADDED a", "ADDED b", "ADDED c"}},
			{"from any version", metav1.ListOptions{ResourceVersion: "0"}, []string{"ADDED a", "ADDED b", "ADDED c"}},
			{"a streamed list", metav1.ListOptions{SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true,
				ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, FieldSelector: "metadata.name!=b"},
				[]string{"ADDED a", "ADDED c", fmt.Sprint("BOOKMARK ", end, "true")}},
			{"from a version that has expired", metav1.ListOptions{ResourceVersion: "1"}, []string{"ERROR Expired"}},
			{"a streamed list not older than the future", metav1.ListOptions{SendInitialEvents: ptr.To(true),
				ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, ResourceVersion: "1000"},
				[]string{"ERROR Timeout"}},
		} {
			if tc.name == "from a version that has expired" {
				s.Compact()
			}
			events := watched(t, client, tc.o)
			for _, want := range tc.want {
				assert.Equal(t, want, <-events, tc.name)
			}
			synctest.Wait()
			select {
			case more, open := <-events:
				assert.False(t, open, "%s: %s", tc.name, more)
			default:
			}
		}
		_, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{SendInitialEvents: ptr.To(true)})
		assert.True(t, apierrors.IsBadRequest(err), "%v", err)
	})
}

func TestObjectsEnterAndLeaveASelection(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		events := watched(t, client, metav1.ListOptions{LabelSelector: "app", ResourceVersion: fmt.Sprint(s.Version())})
		labelled := kube.Service("a").Label("app", "x").Build()
		set(t, s, labelled)
		assert.Equal(t, "ADDED a", <-events)
		set(t, s, labelled)
		assert.Equal(t, "MODIFIED a", <-events)
		set(t, s, service("a", "10.96.0.1"))
		assert.Equal(t, "DELETED a", <-events)
		require.NoError(t, s.Delete(labelled, service("b", "")))
		set(t, s, kube.Service("b").Label("app", "y").Build())
		assert.Equal(t, "ADDED b", <-events, "and nothing of what was not selected")
	})
}

func TestBookmarks(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		o := metav1.ListOptions{ResourceVersion: fmt.Sprint(s.Version()), TimeoutSeconds: ptr.To[int64](60)}
		without := watched(t, client, o)
		o.AllowWatchBookmarks = true
		with := watched(t, client, o)
		set(t, s, kube.Node("n2").Build())
		s.Bookmark()
		bookmark := fmt.Sprint("BOOKMARK ", s.Version())
		assert.Equal(t, bookmark, <-with)
		begin := time.Now()
		assert.Equal(t, bookmark, <-with, "and at the end")
		assert.Empty(t, <-with)
		assert.Empty(t, <-without)
		assert.Equal(t, time.Minute, time.Since(begin)) // virtual
	})
}

func TestAWatchEndsAfterSoManyEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault { return apiserver.Fault{EndAfter: 2} })
		set(t, s, service("c", "10.96.0.3"))
		events := watched(t, client, metav1.ListOptions{})
		assert.Equal(t, []string{"ADDED a", "ADDED b", ""}, []string{<-events, <-events, <-events})
	})
}

// Watches whose clients are slow notice a cut late, along with what happened after it. They do not send that.
func TestACutWatchSendsNothingMore(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		var watches []<-chan string
		for range 20 {
			watches = append(watches,
				watched(t, client, metav1.ListOptions{ResourceVersion: fmt.Sprint(s.Version())}))
		}
		const before = 5 // more than clients read ahead
		for range before {
			set(t, s, service("early", "10.96.0.8"))
		}
		synctest.Wait()
		s.Cut()
		set(t, s, service("late", "10.96.0.9"))
		for _, events := range watches {
			for event := range events { // those that were still on their way may be lost
				assert.Contains(t, event, "early")
			}
		}
	})
}

// A watch of a replica that lags behind begins with what the replica knows, and catches up.
func TestAWatchOfAReplicaCatchesUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		then := s.Version()
		require.NoError(t, s.Delete(service("a", "")))
		s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault { return apiserver.Fault{AsOf: then} })
		events := watched(t, client, metav1.ListOptions{ResourceVersion: "0"})
		assert.Equal(t, []string{"ADDED a", "ADDED b", "DELETED a"}, []string{<-events, <-events, <-events})
	})
}

// A watch whose client reads slowly loses nothing when the history is compacted.
func TestCompactKeepsWhatAWatchHasToSend(t *testing.T) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		version := fmt.Sprint(s.Version())
		w, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		require.NoError(t, err)
		defer w.Stop()
		want := []string{"c", "d", "e", "f"}
		for _, name := range want {
			require.NoError(t, s.Set(service(name, "10.96.0.3")))
			synctest.Wait() // for the watch to take it, or to wait for its client
		}
		s.Compact()
		s.Compact()
		for _, name := range want {
			e := <-w.ResultChan()
			require.Equal(t, apiwatch.Added, e.Type)
			assert.Equal(t, name, e.Object.(*corev1.Service).Name)
		}
		require.NoError(t, s.Set(service("g", "10.96.0.3")))
		assert.Equal(t, "g", (<-w.ResultChan()).Object.(*corev1.Service).Name)

		_, err = client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{ResourceVersion: version,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		assert.True(t, apierrors.IsResourceExpired(err), "%v", err)
		list, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		assert.Len(t, list.Items, 7)
	})
}

// flushes counts how often an answer is flushed.
type flushes struct {
	*httptest.ResponseRecorder
	n int
}

func (f *flushes) Flush() { f.n++ }

// A list is streamed in as few pieces as possible, not in one for each object.
func TestAStreamedListIsFlushedAtItsEnd(t *testing.T) {
	s, err := apiserver.New()
	require.NoError(t, err)
	for i := range 100 {
		set(t, s, service(fmt.Sprint("s", i), "10.96.0.1"))
	}
	s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault { return apiserver.Fault{EndAfter: 101} })
	answer := &flushes{ResponseRecorder: httptest.NewRecorder()}
	s.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		"/api/v1/services?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", nil))
	assert.Equal(t, 101, strings.Count(answer.Body.String(), `"object":`), "100 objects, and the bookmark")
	assert.LessOrEqual(t, answer.n, 2, "the header, and the list")
}
