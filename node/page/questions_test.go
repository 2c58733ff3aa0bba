package page

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// gate counts the goroutines in it, and holds them until it is opened.
type gate struct {
	open chan struct{}

	mu       sync.Mutex
	in, most int
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) pass() {
	g.add(1)
	<-g.open
	g.add(-1)
}

// add changes the number of goroutines by n, and returns the largest number so far.
func (g *gate) add(n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in += n
	g.most = max(g.most, g.in)
	return g.most
}

func (g *gate) await(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return g.add(0) > 0 }, time.Minute, time.Millisecond)
}

// gatedExplainer is an Explainer whose answers take until a gate opens.
type gatedExplainer struct{ *gate }

func (e gatedExplainer) Explain(model.ServiceName) (*localstate.Explanation, bool) {
	e.pass()
	return nil, false
}

// gatedBackend is a backend whose descriptions take until a gate opens.
type gatedBackend struct {
	sink.TeeSink
	*gate
}

func (b *gatedBackend) Sync(context.Context) error { return nil }

func (b *gatedBackend) DescribeService(context.Context, model.ServiceName) (string, error) {
	b.pass()
	return "rules", nil
}

// Many questions about services take one processor, and bounded memory.
func TestQuestionsAboutServicesAreAnsweredOneAtATime(t *testing.T) {
	backend := &gatedBackend{gate: newGate()}
	r := newRig(t, backend, Options{})
	explainer := gatedExplainer{newGate()}
	r.SetExplainer(explainer)
	r.sink.SetService(service("web", 1, false))
	r.apply()

	const path = "/api/service?namespace=shop&name=web"
	var wg sync.WaitGroup
	codes := make(chan int, maxQuestions)
	for range maxQuestions {
		wg.Go(func() { codes <- r.request(path).Code })
	}
	require.Eventually(t, func() bool { return len(r.questions) == maxQuestions }, time.Minute, time.Millisecond)
	explainer.await(t)
	for _, path := range []string{path, "/api/services", "/api/flow?q=x"} {
		w := r.request(path)
		assert.Equal(t, http.StatusServiceUnavailable, w.Code, path)
		assert.Equal(t, "64 questions are already being answered\n", w.Body.String())
	}
	assert.Equal(t, http.StatusOK, r.request("/api/state").Code)

	close(explainer.open)
	backend.await(t)
	close(backend.open)
	wg.Wait()
	for range maxQuestions {
		assert.Equal(t, http.StatusOK, <-codes)
	}
	assert.Equal(t, 1, explainer.add(0))
	assert.Equal(t, 1, backend.add(0))
	assert.Equal(t, http.StatusOK, r.request(path).Code, "there is room again")
}

// A backend that is in a long Sync answers when that has ended.
func TestABackendThatTakesItsTimeDoesNotHoldUpOtherQuestions(t *testing.T) {
	backend := &gatedBackend{gate: newGate()}
	r := newRig(t, backend, Options{})
	r.sink.SetService(service("web", 1, false))
	r.apply()
	var wg sync.WaitGroup
	wg.Go(func() { r.request("/api/service?namespace=shop&name=web") })
	backend.await(t)
	assert.Equal(t, http.StatusOK, r.request("/api/services").Code)
	assert.Equal(t, http.StatusNotFound, r.request("/api/service?name=x").Code)
	close(backend.open)
	wg.Wait()
}

// A name that is not UTF-8, which JSON cannot have, leads to its service all the same.
func TestANameThatIsNotUTF8IsFound(t *testing.T) {
	r := newRig(t, nil, Options{})
	for i, name := range []string{"a", "caf\xe9 \xc3\xff", "caf\xe9", "caf\ufffd\ufffd"} {
		r.sink.SetService(service(name, i, false))
	}
	r.apply()
	for _, listed := range get[serviceList](r, "/api/services").Services {
		found := get[serviceDetails](r, "/api/service", "namespace", listed.Name.Namespace, "name", listed.Name.Name)
		assert.Equal(t, listed.ClusterIPs, found.Service.ClusterIPs, "%q", listed.Name)
	}
	assert.Equal(t, http.StatusNotFound, r.request("/api/service?namespace=shop&name=%EF%BF%BD").Code)
}
