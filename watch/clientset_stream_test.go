package watch

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

// incompleteRecorder also records the kinds whose streamed lists did not end.
type incompleteRecorder struct {
	*recorder
	incomplete map[kind]int
}

func (r *incompleteRecorder) ListIncomplete(obj metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, _ := kindOf(obj)
	r.incomplete[k]++
}

// A tunnel drops the bookmark that ends a streamed list, of one kind of object or of all.
func TestAListThatDoesNotEndIsListedWithoutStreaming(t *testing.T) {
	kinds := []kind{services, endpointSlices, serviceCIDRs, nodes}
	cases := map[string][]kind{"all": kinds}
	for _, k := range kinds {
		cases[k.String()] = []kind{k}
	}
	for name, lost := range cases {
		for state, objs := range map[string][]object{
			"objects": {service("a"), slice("a-1"), node("n1"), serviceCIDR("kubernetes")},
			"empty":   nil,
		} {
			t.Run(name+"/"+state, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newAPIServer(t, objs...)
					s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
						for _, k := range lost {
							if kindOfRequest(r) == k {
								return apiserver.Fault{NoEndOfList: true}
							}
						}
						return apiserver.Fault{}
					})
					r := &incompleteRecorder{newRecorder(t), map[kind]int{}}
					logger, logs := testLogger(t)
					ctx, cancel := context.WithCancel(contextWith(t, logger))
					done := make(chan error, 1)
					go func() { done <- newClientset(t, s.client(), ClientsetOptions{}).Run(ctx, "n1", r) }()
					began := time.Now()
					r.waitSynced()
					assert.Equal(t, streamQuiet, time.Since(began))
					assert.Len(t, r.atSynced, len(objs))
					s.apply(service("late"))
					r.wait("a change", func() bool { return r.objects[keyOf(service("late"))] != nil })
					s.Compact() // the next watch fails, so that everything is listed again
					s.Cut()
					s.apply(service("later"))
					r.wait("a change", func() bool { return r.objects[keyOf(service("later"))] != nil })
					cancel()
					require.NoError(t, <-done)
					assert.Equal(t, len(lost), countIn(logs(), "A streamed list does not end"), "one line for each")
					assert.Len(t, r.incomplete, len(lost))
				})
			})
		}
	}
}

// streamedStore returns a store of a list that is being streamed, and its watch.
func streamedStore(t *testing.T) (*nameStore, *apiwatch.FakeWatcher, func() error) {
	s := newNameStore(services, newRecorder(t), func() {})
	w := apiwatch.NewFake()
	begin := s.noted(func(context.Context, metav1.ListOptions) (apiwatch.Interface, error) { return w, nil })
	yes := true
	again := func() error {
		w, err := begin(t.Context(), metav1.ListOptions{SendInitialEvents: &yes})
		if err == nil {
			t.Cleanup(w.Stop)
		}
		return err
	}
	require.NoError(t, again())
	return s, w, again
}

func versioned(name string, version int) object {
	o := service(name)
	o.ResourceVersion = strconv.Itoa(version)
	return o
}

func TestAStreamedListIsGivenUpWhenItsObjectsEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		version func(n int) int
		stopped bool
	}{
		"a slow list that still sends":       {version: func(n int) int { return 1000 - n }},
		"changes after a list without end":   {version: func(n int) int { return 1000 + n }, stopped: true},
		"resourceVersions of no order known": {version: func(int) int { return -1 }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, again := streamedStore(t)
				transform := s.Transformer()
				for n := range 20 {
					_, err := transform(versioned("s"+strconv.Itoa(n), tc.version(n)))
					require.NoError(t, err)
					time.Sleep(streamQuiet - time.Second) // virtual
				}
				synctest.Wait()
				assert.Equal(t, tc.stopped, w.IsStopped())
				if tc.stopped {
					require.ErrorIs(t, again(), errIncomplete)
				}
				s.stream.ended()
			})
		})
	}
}

func TestAListThatEndedIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := streamedStore(t)
		require.NoError(t, s.Replace(nil, "1"))
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		assert.False(t, w.IsStopped())
	})
}

// A tunnel that cuts streams before they are quiet for long enough does not prevent the list.
func TestStreamedListsThatBreakOffAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, again := streamedStore(t)
		for range maxIncomplete - 1 {
			time.Sleep(streamQuiet / 2) // virtual
			require.NoError(t, again())
		}
		require.ErrorIs(t, again(), errIncomplete)
		s.stream.ended()
		require.ErrorIs(t, again(), errIncomplete, "from then on")
	})
}

func contextWith(t *testing.T, logger klog.Logger) context.Context {
	return klog.NewContext(t.Context(), logger)
}
