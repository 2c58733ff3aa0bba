package brain

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// changes is what happens to a cluster, and how far each of the replicas is that watch it.
type changes struct {
	d        testkit.Random
	all      []watch.Change
	whole    *cluster
	replicas []*cluster
	at       []int // of replicas, in all
}

func newHistory(d testkit.Random, replicas int) *changes {
	h := &changes{d: d, whole: newCluster(), at: make([]int, replicas)}
	for range replicas {
		h.replicas = append(h.replicas, newCluster())
	}
	return h
}

// happens adds a change, with the next resourceVersion.
func (h *changes) happens(c watch.Change) {
	h.all = append(h.all, c)
	at(strconv.Itoa(len(h.all)), c.Object)
	h.whole.change(c)
}

// tick changes an object of each kind, so that whoever sees the change knows its version; and a service that serves as
// the clock.
func (h *changes) tick() {
	slice := kube.EndpointSlice("default/clock").Port("http", 80).
		Endpoint(fmt.Sprintf("10.9.%d.%d", len(h.all)/250, len(h.all)%250)).Build()
	for _, o := range []metav1.Object{
		kube.Service("default/clock").ClusterIP("10.96.9.9").Port("http", 80).Label("at", strconv.Itoa(len(h.all))).
			Build(),
		slice,
		kube.Node("clock").Zone(strconv.Itoa(len(h.all))).Build(),
		kube.ServiceCIDR("clock", fmt.Sprintf("10.98.%d.0/24", len(h.all)%250)),
	} {
		h.happens(watch.Change{Object: o})
	}
}

// advance has a replica see some of what has happened, in one piece or several.
func (h *changes) advance(replica, by int) {
	for end := min(h.at[replica]+by, len(h.all)); h.at[replica] < end; {
		next := h.at[replica] + 1 + h.d.IntN(end-h.at[replica])
		h.replicas[replica].change(h.all[h.at[replica]:next]...)
		h.at[replica] = next
	}
}

// catchUp lets all replicas see all changes, and know that they have.
func (h *changes) catchUp() {
	h.tick()
	for i := range h.replicas {
		h.advance(i, len(h.all))
	}
}

// clockSink notes the time that the clock service shows, and whether it has ever gone back.
type clockSink struct {
	*sink.Recorder
	mu   sync.Mutex
	now  int
	back []string
}

func (s *clockSink) SetService(svc *model.Service) {
	s.Recorder.SetService(svc)
	if text, ok := svc.Labels["at"]; ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		at, _ := strconv.Atoi(text)
		if at < s.now {
			s.back = append(s.back, fmt.Sprintf("from %d to %d", s.now, at))
		}
		s.now = at
	}
}

// TestFaultsWithReplicasThatLag: connections are cut, replicas killed and started anew, each of them is somewhere else
// in the history of the cluster; no node ever goes back, and at the end every sink has what one has that is fed
// directly.
func TestFaultsWithReplicasThatLag(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel() // they wait most of the time
			d := testkit.Seeded(seed)
			h := newHistory(d, 2)
			for _, o := range baseObjects() {
				h.happens(watch.Change{Object: o})
			}
			h.catchUp()
			opts := func(i int) Options {
				return Options{Source: h.replicas[i], KeepBytes: 1 + d.IntN(20_000), limits: limits{
					minInterval: time.Duration(d.IntN(3)-1) * time.Millisecond, heartbeat: 100 * time.Millisecond,
					maxFullStates: 1 + d.IntN(2), maxCatchUp: time.Millisecond, maxDigests: 1 + d.IntN(200),
					maxAge: time.Duration(200+d.IntN(2000)) * time.Millisecond}}
			}
			var servers []*replica
			var proxies []proxy
			for i := range h.replicas {
				servers = append(servers, serve(t, opts(i), socket(t)))
				proxies = append(proxies, newProxy(t, servers[i].target))
			}
			var sinks []*clockSink
			for _, node := range nodeNames {
				s := &clockSink{Recorder: &sink.Recorder{}}
				sinks = append(sinks, s)
				run(t, kubeproxy.Options{Sink: s, RetryInterval: 10 * time.Millisecond},
					remote.Options{Targets: []string{proxies[0].target, proxies[1].target}, FreshnessWait: time.Hour,
						State: localstate.Options{NodeName: node}})
			}
			await := func(i int) {
				h.catchUp()
				proxies[0].Unblock()
				proxies[1].Unblock()
				awaitState(t, h.whole, localstate.Options{NodeName: nodeNames[i]}, sinks[i].Recorder)
			}
			for range 40 {
				h.happens(randomChange(d))
				if testkit.OneIn(d, 3) {
					h.tick()
				}
				h.advance(d.IntN(2), d.IntN(8))
				switch i := d.IntN(2); d.IntN(8) {
				case 0, 1:
					proxies[i].Cut()
				case 2:
					testkit.Pick(d, proxies[i].Block, proxies[i].Unblock)()
				case 3:
					servers[i].stop()
					servers[i] = serve(t, opts(i), servers[i].target)
				case 4:
					sinks[d.IntN(len(sinks))].FailNext(errors.New("out of order"))
				case 5:
					await(d.IntN(len(nodeNames))) // let somebody get somewhere
				case 6: // and then see that the other one lags
					n := d.IntN(len(nodeNames))
					h.tick()
					h.advance(i, len(h.all))
					proxies[i].Unblock()
					proxies[1-i].Block()
					awaitState(t, h.whole, localstate.Options{NodeName: nodeNames[n]}, sinks[n].Recorder)
					proxies[1-i].Unblock()
					before := servers[1-i].sent("behind")
					proxies[i].Block()
					require.Eventually(t, func() bool { return servers[1-i].sent("behind") > before }, testTimeout, time.Millisecond)
				}
			}
			for i, s := range sinks {
				await(i)
				assert.Empty(t, s.Violations())
				s.mu.Lock()
				assert.Empty(t, s.back, "node %s", nodeNames[i])
				s.mu.Unlock()
			}
		})
	}
}

// A client's state may lie between two versions of a server. If what changed then has changed back since, the client is
// sent the service all the same.
func TestWhatHasChangedBackIsSentToo(t *testing.T) {
	between := clusterAt("20", "10.0.0.2")
	second := clusterAt("10", "10.0.0.1")
	b := laterServer(t, second)
	changes := []watch.Change{{Object: at("20", web("a", "10.0.0.2")[1])[0]}}
	for _, o := range at("21", web("b", "10.0.1.1")...) { // so that the client's state is none of this server's versions
		changes = append(changes, watch.Change{Object: o})
	}
	second.change(changes...)
	b.publish(t.Context())
	second.set(at("22", web("a", "10.0.0.1")[1])...)
	b.publish(t.Context())
	f := failOver(t, time.Hour, between, b)
	awaitState(t, second, stateN1, f.rec)
	require.Equal(t, 1, b.sent("resumed_diff"))
	assert.Zero(t, b.sent("compared"))
}
