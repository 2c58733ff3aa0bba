package watch

import (
	"context"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// recorder is a Handler that stores what was delivered, and lets tests wait for it.
type recorder struct {
	t *testing.T

	mu       sync.Mutex
	objects  map[key]metav1.Object // what there is now
	updates  [][]Change
	synced   int
	atSynced []string     // the names of what there was when Synced was called
	over     bool         // Run has returned
	silent   map[kind]int // lists that followed a silence
	changed  chan struct{}
	onUpdate func() // called in Update, without the lock
	timeout  time.Duration
}

// newRecorder returns a recorder for tests in virtual time. It waits longer than the longest pause of a source, the ten
// minutes of missingRetry, before a test fails.
func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, objects: map[key]metav1.Object{}, silent: map[kind]int{}, changed: make(chan struct{}),
		timeout: time.Hour}
}

// newRealTimeRecorder returns a recorder for tests in real time.
func newRealTimeRecorder(t *testing.T) *recorder {
	r := newRecorder(t)
	r.timeout = time.Minute
	return r
}

func (r *recorder) Update(changes ...Change) {
	if r.onUpdate != nil {
		r.onUpdate()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		r.t.Errorf("Update after Run had returned: %v", changeNames(changes))
	}
	if len(changes) == 0 {
		r.t.Errorf("Update without a change")
	}
	for _, c := range changes {
		if c.Deleted {
			delete(r.objects, keyOf(c.Object))
		} else {
			r.objects[keyOf(c.Object)] = c.Object
		}
	}
	r.updates = append(r.updates, changes)
	r.notify()
}

func (r *recorder) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		r.t.Errorf("Synced after Run had returned")
	}
	r.synced++
	r.atSynced = r.namesLocked()
	r.notify()
}

func (r *recorder) WatchSilent(obj metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, _ := kindOf(obj)
	r.silent[k]++
}

func (r *recorder) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait waits until cond holds. cond may read the recorder's fields.
func (r *recorder) wait(what string, cond func() bool) {
	r.t.Helper()
	timeout := time.NewTimer(r.timeout)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		ok, changed := cond(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			r.t.Fatalf("waited in vain for: %s; there is %v", what, r.names())
		}
	}
}

func (r *recorder) waitSynced() {
	r.t.Helper()
	r.wait("Synced", func() bool { return r.synced > 0 })
}

// waitFor waits until exactly the named objects exist.
func (r *recorder) waitFor(names ...string) {
	r.t.Helper()
	sort.Strings(names)
	r.wait("objects", func() bool {
		got := r.namesLocked()
		if len(got) != len(names) {
			return false
		}
		for i := range got {
			if got[i] != names[i] {
				return false
			}
		}
		return true
	})
}

func (r *recorder) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.namesLocked()
}

func (r *recorder) namesLocked() []string {
	names := []string{}
	for k := range r.objects {
		names = append(names, k.String())
	}
	sort.Strings(names)
	return names
}

// get returns the object that was delivered last under the key.
func (r *recorder) get(k key) metav1.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[k]
}

func (r *recorder) updateCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.updates)
}

func (r *recorder) update(i int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return changeNames(r.updates[i])
}

func (r *recorder) syncedCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.synced
}

// changeNames returns "+services ns/name" and "-services ns/name", sorted.
func changeNames(changes []Change) []string {
	names := []string{}
	for _, c := range changes {
		sign := "+"
		if c.Deleted {
			sign = "-"
		}
		names = append(names, sign+keyOf(c.Object).String())
	}
	sort.Strings(names)
	return names
}

func keyOf(obj metav1.Object) key {
	k, ok := kindOf(obj)
	if !ok {
		panic("not an object that sources deliver")
	}
	return key{k, obj.GetNamespace(), obj.GetName()}
}

// start runs the source. stop ends the run and checks that it ends well; nothing may be delivered afterwards.
func start(t *testing.T, s Source, nodeName string, h *recorder) (stop func()) {
	t.Helper()
	stop, _ = startLogged(t, s, nodeName, h)
	return stop
}

func startLogged(t *testing.T, s Source, nodeName string, h *recorder) (stop func(), logs func() string) {
	t.Helper()
	logger, logs := testLogger(t)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, nodeName, h) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-done)
			h.mu.Lock()
			h.over = true
			h.mu.Unlock()
		})
	}
	t.Cleanup(stop)
	return stop, logs
}

// testLogger returns a logger that keeps what is logged.
func testLogger(t *testing.T) (klog.Logger, func() string) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(4)))
	buffer := logger.GetSink().(ktesting.Underlier).GetBuffer()
	return logger, buffer.String
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.1"},
	}
}

func slice(name string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
	}
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func serviceCIDR(name string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/16"}},
	}
}

// labelled adds a label.
func labelled[T metav1.Object](obj T, label, value string) T {
	l := map[string]string{label: value}
	for k, v := range obj.GetLabels() {
		l[k] = v
	}
	obj.SetLabels(l)
	return obj
}

// noLeaks fails the test if goroutines are left after everything else has been cleaned up.
func noLeaks(t *testing.T) { t.Cleanup(func() { testkit.NoLeak(t) }) }
