package watch

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// forgetful is a Handler that keeps no object, and knows which of the objects that it was given are still in memory.
type forgetful struct {
	mu      sync.Mutex
	objects []weak.Pointer[corev1.Service]
	synced  chan struct{}
	// onUpdate, if given, is called at the end of an Update, without the lock.
	onUpdate func()
}

func (f *forgetful) Update(changes ...Change) {
	f.mu.Lock()
	for _, c := range changes {
		f.objects = append(f.objects, weak.Make(c.Object.(*corev1.Service)))
	}
	f.mu.Unlock()
	if f.onUpdate != nil {
		f.onUpdate()
	}
	runtime.KeepAlive(changes)
}

func (f *forgetful) Synced() { close(f.synced) }

// alive returns how many of the objects are in memory, and how many there were.
func (f *forgetful) alive() (alive, all int) {
	runtime.GC()
	runtime.GC()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects {
		if o.Value() != nil {
			alive++
		}
	}
	return alive, len(f.objects)
}

func TestClientsetKeepsNoObjectAlive(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		for i := range 50 {
			s.apply(service(fmt.Sprint("listed-", i)))
		}
		h := &forgetful{synced: make(chan struct{})}
		runForgetful(t, newClientset(t, s.client(), ClientsetOptions{}), h)
		for i := range 50 {
			s.apply(service(fmt.Sprint("watched-", i)))
		}
		synctest.Wait()
		alive, all := h.alive()
		assert.Equal(t, 100, all)
		assert.Zero(t, alive)
	})
}

// While a first list is streamed, only what is being handed over and decoded is in memory.
func TestClientsetKeepsNoObjectOfAStreamedList(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		for i := range 50 {
			s.apply(service(fmt.Sprint("listed-", i)))
		}
		h := &forgetful{synced: make(chan struct{})}
		most := 0
		h.onUpdate = func() {
			alive, _ := h.alive()
			most = max(most, alive)
		}
		runForgetful(t, newClientset(t, s.client(), ClientsetOptions{}), h)
		assert.Len(t, h.objects, 50)
		assert.LessOrEqual(t, most, 5)
	})
}

func TestFilesKeepNoObjectAlive(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		text := ""
		for i := range 50 {
			text += doc(fmt.Sprint("s-", i), "1")
		}
		h := &forgetful{synced: make(chan struct{})}
		runForgetful(t, newFilesFS(t, files("a.yaml", text)), h)
		synctest.Wait()
		alive, all := h.alive()
		assert.Equal(t, 50, all)
		assert.Zero(t, alive)
	})
}

// runForgetful runs the source until the test ends, and returns when it is synced.
func runForgetful(t *testing.T, s Source, h *forgetful) {
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context(), "", h) }()
	t.Cleanup(func() { require.NoError(t, <-done) })
	<-h.synced
}

func TestNameStoreRefusesForeignTypes(t *testing.T) {
	r := newRecorder(t)
	s := newNameStore(services, r, func() { t.Error("counted for a list") })
	require.ErrorContains(t, s.Add(node("n1")), "*v1.Node instead of one of the services")
	require.Error(t, s.Update("x"))
	require.Error(t, s.Delete(slice("a")))
	require.Error(t, s.Replace([]any{service("a"), node("n1")}, ""))
	assert.Zero(t, r.updateCount())
}
