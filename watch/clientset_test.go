package watch

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

func newClientset(t *testing.T, client kubernetes.Interface, opts ClientsetOptions) *Clientset {
	t.Helper()
	c, err := NewClientset(client, opts)
	require.NoError(t, err)
	return c
}

// onBothServers runs a test against a server that streams lists and one that does not, in virtual time.
func onBothServers(t *testing.T, f func(t *testing.T, s *apiServer)) {
	for name, refuse := range map[string]func(apiserver.Request) error{
		"server that streams lists":         func(apiserver.Request) error { return nil },
		"server that does not stream lists": noWatchList,
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t)
				s.setRefuse(refuse)
				f(t, s)
			})
		})
	}
}

func TestClientsetRefusesBadOptions(t *testing.T) {
	_, err := NewClientset(nil, ClientsetOptions{ServiceProxyName: "not a label"})
	require.ErrorContains(t, err, "client is nil")
	require.ErrorContains(t, err, `ServiceProxyName "not a label"`)
	_, err = NewClientset(fake.NewClientset(), ClientsetOptions{OnlyNodes: true, NoNodes: true})
	require.ErrorContains(t, err, "both OnlyNodes and NoNodes are set")
}

func TestClientsetDeliversExistingObjectsAndThenChanges(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), slice("a-1"), node("n1"), node("n2"), serviceCIDR("kubernetes"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
		r.waitSynced()
		all := []string{
			"endpointslices.discovery.k8s.io default/a-1", "nodes n1", "servicecidrs.networking.k8s.io kubernetes",
			"services default/a",
		}
		assert.Equal(t, all, r.atSynced)

		s.apply(service("b"))
		r.waitFor(append(all, "services default/b")...)
		changed := service("b")
		changed.Spec.ClusterIP = "10.0.0.9"
		s.apply(changed)
		r.wait("changed service", func() bool {
			return r.objects[keyOf(changed)].(*corev1.Service).Spec.ClusterIP == "10.0.0.9"
		})
		s.remove(service("b"), node("n1"))
		r.waitFor(all[0], all[2], all[3])
		synctest.Wait()
		assert.Equal(t, 1, r.syncedCount())
	})
}

func TestClientsetTakesAnEmptyClusterForComplete(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
		r.waitSynced()
		assert.Zero(t, r.updateCount())
		s.apply(node("n1"))
		r.waitFor("nodes n1")
		synctest.Wait()
		assert.Equal(t, 1, r.syncedCount())
	})
}

func TestClientsetDeliversAnInitialListInOnePieceUnlessItIsStreamed(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), service("b"), service("c"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		all := []string{"+services default/a", "+services default/b", "+services default/c"}
		if s.refuse(apiserver.Request{Verb: "watch", Options: streamed}) != nil {
			require.Equal(t, 1, r.updateCount())
			assert.Equal(t, all, r.update(0))
			return
		}
		require.Equal(t, 3, r.updateCount())
		for i := range all {
			assert.Equal(t, all[i:i+1], r.update(i))
		}
	})
}

// streamed are options of a streamed list.
var streamed = metav1.ListOptions{SendInitialEvents: ptr.To(true)}

// Objects that an interrupted list has delivered are deleted if the next list lacks them.
func TestClientsetForgetsAListThatBreaksOff(t *testing.T) {
	for name, next := range map[string]func(apiserver.Request) error{
		"the next list is streamed":     func(apiserver.Request) error { return nil },
		"the next list is not streamed": noWatchList,
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t, service("a"), service("b"), service("c"))
				first := true
				s.SetFaults(func(_ context.Context, r apiserver.Request) (f apiserver.Fault) {
					switch {
					case kindOfRequest(r) != services:
					case first:
						first = false
						f.EndAfter = 2
					default:
						s.remove(service("a"))
						f.Err = next(r)
					}
					return f
				})
				r := newRecorder(t)
				start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
				r.waitSynced()
				assert.Equal(t, []string{"services default/b", "services default/c"}, r.atSynced)
				assert.Equal(t, []string{"+services default/a"}, r.update(0))
				assert.Contains(t, r.update(r.updateCount()-1), "-services default/a")
			})
		})
	}
}

func TestClientsetDeliversADeletionThatHappenedBeforeACompaction(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		refuse := s.refuse
		s.apply(service("stays"), service("goes"), slice("goes-1"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		synctest.Wait() // the watches are open
		before := r.updateCount()

		s.setRefuse(func(apiserver.Request) error { return syscall.ECONNREFUSED })
		s.Cut()
		synctest.Wait()
		s.remove(service("goes"), slice("goes-1"))
		s.apply(service("new"))
		s.Compact()
		synctest.Wait()
		assert.Equal(t, before, r.updateCount(), "the server is away")

		s.setRefuse(refuse)
		r.waitFor("services default/stays", "services default/new")
		synctest.Wait()
		require.Equal(t, before+2, r.updateCount(), "one update for services and one for slices")
		for _, i := range []int{before, before + 1} {
			if got := r.update(i); len(got) > 1 {
				assert.Equal(t, []string{"+services default/new", "+services default/stays", "-services default/goes"},
					got)
			} else {
				assert.Equal(t, []string{"-endpointslices.discovery.k8s.io default/goes-1"}, got)
			}
		}
		assert.Equal(t, 1, r.syncedCount())
	})
}

func TestClientsetRemembersAtARelistWhatAWatchDelivered(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		refuse := s.refuse
		s.apply(service("listed"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		synctest.Wait() // the watches are open
		s.apply(service("watched"))
		s.remove(service("listed"))
		r.waitFor("services default/watched")
		before := r.updateCount()

		s.setRefuse(func(apiserver.Request) error { return syscall.ECONNREFUSED })
		s.Cut()
		synctest.Wait()
		s.remove(service("watched"))
		s.Compact()
		s.setRefuse(refuse)
		r.waitFor()
		synctest.Wait()
		require.Equal(t, before+1, r.updateCount())
		assert.Equal(t, []string{"-services default/watched"}, r.update(before),
			"the other one was delivered as deleted before")
	})
}

func TestClientsetRelistsDoNotCountForOtherLists(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, service("a"))
		s.setRefuse(func(r apiserver.Request) error {
			if kindOfRequest(r) == endpointSlices {
				return syscall.ECONNREFUSED
			}
			return nil
		})
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
		for range 5 {
			time.Sleep(5 * time.Minute) // virtual
			s.Compact()
			s.Cut()
		}
		time.Sleep(5 * time.Minute)
		assert.Greater(t, r.updateCount(), 2, "services were listed again")
		assert.Zero(t, r.syncedCount(), "slices were not listed")
	})
}

func TestClientsetDeliversADeletionThatHappenedWhileDisconnected(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		refuse := s.refuse
		s.apply(service("stays"), service("goes"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		before := r.updateCount()
		time.Sleep(time.Minute) // virtual: client-go lists again after a watch of less than a second
		s.setRefuse(func(apiserver.Request) error { return syscall.ECONNREFUSED })
		s.Cut()
		synctest.Wait()
		s.remove(service("goes"))
		synctest.Wait()
		s.setRefuse(refuse)
		r.waitFor("services default/stays")
		synctest.Wait()
		require.Equal(t, before+1, r.updateCount(), "the watch was taken up where it ended")
		assert.Equal(t, []string{"-services default/goes"}, r.update(before))
	})
}

func TestClientsetDeliversADeletionWhenAnObjectLeavesTheSelector(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), slice("a-1"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		s.apply(labelled(service("a"), labelServiceProxyName, "other"),
			labelled(slice("a-1"), corev1.IsHeadlessService, ""))
		r.waitFor()
		s.apply(service("a"), slice("a-1"))
		r.waitFor("services default/a", "endpointslices.discovery.k8s.io default/a-1")
		headless := service("a")
		headless.Spec.ClusterIP = corev1.ClusterIPNone
		s.apply(headless)
		r.waitFor("endpointslices.discovery.k8s.io default/a-1")
	})
}

func TestClientsetIsNotCompleteWhileAListIsForbidden(t *testing.T) {
	for _, k := range []kind{services, endpointSlices, nodes} {
		t.Run(k.String(), func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t, service("a"))
				s.setRefuse(forbid(k))
				r := newRecorder(t)
				_, logs := startLogged(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
				time.Sleep(10 * time.Minute) // virtual
				assert.Zero(t, r.syncedCount())
				assert.Contains(t, logs(), "Not allowed to list and watch")
				assert.Contains(t, logs(), `resource="`+k.String()+`"`)
				s.setRefuse(nil)
				r.waitSynced()
				assert.Equal(t, []string{"services default/a"}, r.names())
			})
		})
	}
}

// forbid returns a refuse function for a kind.
func forbid(k kind) func(apiserver.Request) error {
	return func(r apiserver.Request) error {
		if kindOfRequest(r) == k {
			return apierrors.NewForbidden(schema.GroupResource{Resource: k.String()}, "", nil)
		}
		return nil
	}
}

func TestClientsetIsCompleteWithoutServiceCIDRsThatMayNotBeListed(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, service("a"), serviceCIDR("kubernetes"))
		s.setRefuse(forbid(serviceCIDRs))
		r := newRecorder(t)
		_, logs := startLogged(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		assert.Equal(t, []string{"services default/a"}, r.atSynced)
		time.Sleep(10 * time.Minute) // virtual
		assert.Equal(t, 1, countIn(logs(), "Not allowed to list and watch"), "once, not at every attempt")
		assert.Contains(t, logs(), `resource="servicecidrs.networking.k8s.io"`)

		s.setRefuse(nil) // the rules are corrected
		begin := time.Now()
		r.waitFor("services default/a", "servicecidrs.networking.k8s.io kubernetes")
		assert.LessOrEqual(t, time.Since(begin), time.Minute) // virtual

		s.setRefuse(forbid(serviceCIDRs)) // and broken again: what is known stays
		s.Cut()
		s.Compact()
		time.Sleep(10 * time.Minute) // virtual
		assert.Equal(t, []string{"servicecidrs.networking.k8s.io kubernetes", "services default/a"}, r.names())
		assert.Equal(t, 2, countIn(logs(), "Not allowed to list and watch"))
		s.remove(serviceCIDR("kubernetes"))
		s.setRefuse(nil)
		r.waitFor("services default/a")
		assert.Equal(t, 1, r.syncedCount())
	})
}

func TestClientsetIsNotCompleteWhileTheServerLacksAKindThatItMustHave(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.setRefuse(func(r apiserver.Request) error {
			if kindOfRequest(r) == endpointSlices {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "endpointslices"}, "")
			}
			return nil
		})
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		time.Sleep(10 * time.Minute) // virtual
		assert.Zero(t, r.syncedCount())
	})
}

func TestClientsetIsCompleteWithoutServiceCIDRsOnAServerThatHasNone(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, service("a"), serviceCIDR("kubernetes"))
		missing := func(r apiserver.Request) error {
			if kindOfRequest(r) == serviceCIDRs {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "servicecidrs"}, "")
			}
			return nil
		}
		s.setRefuse(missing)
		r := newRecorder(t)
		_, logs := startLogged(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		time.Sleep(time.Hour + time.Minute) // virtual
		assert.Equal(t, 1, countIn(logs(), "The API server does not have this kind of object"))
		asked := 0
		for _, q := range s.Requests() {
			if kindOfRequest(q) == serviceCIDRs && q.Verb == "list" {
				asked++
			}
		}
		assert.LessOrEqual(t, asked, 7, "asked again every ten minutes")
		assert.GreaterOrEqual(t, asked, 2)

		s.setRefuse(nil) // upgraded
		r.waitFor("services default/a", "servicecidrs.networking.k8s.io kubernetes")
		s.setRefuse(missing) // downgraded
		s.Cut()
		s.Compact()
		r.waitFor("services default/a")
		assert.Equal(t, 1, r.syncedCount())
	})
}

func TestClientsetLeavesOutNodesWithoutANodeName(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, service("a"), serviceCIDR("kubernetes"), node("n1"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "", r)
		r.waitSynced()
		assert.Equal(t, []string{"servicecidrs.networking.k8s.io kubernetes", "services default/a"}, r.atSynced)
		for _, q := range s.Requests() {
			assert.NotEqual(t, nodes, kindOfRequest(q))
		}
	})
}

func TestClientsetSendsTheSelectors(t *testing.T) {
	for _, test := range []struct{ name, proxyName, services string }{
		{"without a proxy name", "", "!service.kubernetes.io/service-proxy-name"},
		{"with a proxy name", "mine", "service.kubernetes.io/service-proxy-name=mine"},
		{"of all proxies", localstate.AllServiceProxies, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				r := newRecorder(t)
				start(t, newClientset(t, client, ClientsetOptions{ServiceProxyName: test.proxyName}), "n1", r)
				r.waitSynced()
				synctest.Wait()
				want := map[string][2]string{
					"services":       {test.services, "spec.clusterIP!=None"},
					"endpointslices": {"!service.kubernetes.io/headless", ""},
					"nodes":          {"", "metadata.name=n1"},
					"servicecidrs":   {"", ""},
				}
				seen := map[string]int{}
				for _, action := range client.Actions() {
					resource := action.GetResource().Resource
					var labels, fields string
					switch a := action.(type) {
					case clienttesting.ListActionImpl:
						labels, fields = a.ListRestrictions.Labels.String(), a.ListRestrictions.Fields.String()
					case clienttesting.WatchActionImpl:
						labels, fields = a.WatchRestrictions.Labels.String(), a.WatchRestrictions.Fields.String()
					default:
						t.Errorf("unexpected %s of %s", action.GetVerb(), resource)
					}
					assert.Equal(t, want[resource], [2]string{labels, fields}, "%s %s", action.GetVerb(), resource)
					seen[resource]++
				}
				for resource := range want {
					assert.Equal(t, 2, seen[resource], "a list and a watch of %s", resource)
				}
			})
		})
	}
}

// A program that knows its node, or does not drop traffic to unallocated addresses, needs no permission for Nodes or
// ServiceCIDRs.
func TestClientsetOptionsLeaveOutNodesAndServiceCIDRs(t *testing.T) {
	for _, tc := range []struct {
		opts         ClientsetOptions
		want         []string
		never        []kind
		deliverNodes bool
	}{
		{ClientsetOptions{NoServiceCIDRs: true}, []string{"nodes n1", "services default/a"}, []kind{serviceCIDRs}, true},
		{ClientsetOptions{NoNodes: true}, []string{"servicecidrs.networking.k8s.io kubernetes", "services default/a"},
			[]kind{nodes}, false},
		{ClientsetOptions{NoNodes: true, NoServiceCIDRs: true}, []string{"services default/a"},
			[]kind{nodes, serviceCIDRs}, false},
		{ClientsetOptions{OnlyNodes: true}, []string{"nodes n1"}, []kind{services, endpointSlices, serviceCIDRs}, true},
	} {
		for _, nodeName := range []string{"n1", AllNodes} {
			onBothServers(t, func(t *testing.T, s *apiServer) {
				s.apply(node("n1"), serviceCIDR("kubernetes"), service("a"))
				c := newClientset(t, s.client(), tc.opts)
				assert.Equal(t, tc.deliverNodes, c.DeliversNodes())
				r := newRecorder(t)
				start(t, c, nodeName, r)
				r.waitSynced()
				assert.Equal(t, tc.want, r.atSynced)
				time.Sleep(time.Hour) // virtual
				for _, q := range s.Requests() {
					assert.NotContains(t, tc.never, kindOfRequest(q))
				}
			})
		}
	}
}

// A source of nothing has listed everything, and still runs until it is stopped.
func TestAClientsetThatHasNothingToListRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, ended := newRecorder(t), make(chan error, 1)
		c := newClientset(t, fake.NewClientset(), ClientsetOptions{OnlyNodes: true})
		go func() { ended <- c.Run(ctx, "", r) }()
		r.waitSynced()
		synctest.Wait()
		assert.Empty(t, ended)
		cancel()
		assert.NoError(t, <-ended)
	})
}

func TestClientsetStreamsListsAndAsksForProtobuf(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
		r.waitSynced()
		synctest.Wait()
		assert.Len(t, s.Requests(), 4)
		for _, q := range s.Requests() {
			assert.True(t, q.StreamsList(), q)
			assert.Contains(t, q.Header.Get("Accept"), "application/vnd.kubernetes.protobuf", q)
		}
	})
}

func TestClientsetEndsWhileTheServerIsAway(t *testing.T) {
	for name, err := range map[string]error{
		"connection refused": syscall.ECONNREFUSED,
		"internal error":     apierrors.NewInternalError(http.ErrAbortHandler),
		"too many requests":  apierrors.NewTooManyRequests("later", 60),
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t)
				s.setRefuse(func(apiserver.Request) error { return err })
				r := newRecorder(t)
				stop := start(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
				time.Sleep(5 * time.Minute) // virtual: the pauses have grown to a minute
				synctest.Wait()
				before := time.Now()
				stop()
				assert.Zero(t, time.Since(before))
				assert.Zero(t, r.syncedCount())
			})
		})
	}
}

func TestClientsetEndsDuringTheInitialListAndWaitsForIt(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		hanging, release := make(chan struct{}, 8), make(chan struct{})
		s := newAPIServer(t, service("a"), slice("a-1"))
		s.SetFaults(func(ctx context.Context, r apiserver.Request) apiserver.Fault {
			if r.Verb == "list" && kindOfRequest(r) == endpointSlices {
				hanging <- struct{}{}
				<-ctx.Done()
				<-release
			}
			return apiserver.Fault{Err: noWatchList(r)}
		})
		r := newRecorder(t)
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			assert.NoError(t, newClientset(t, s.client(), ClientsetOptions{}).Run(ctx, "", r))
		}()
		<-hanging
		r.waitFor("services default/a")
		cancel()
		synctest.Wait()
		select {
		case <-returned:
			t.Error("Run returned while a list call was under way")
		default:
		}
		close(release)
		<-returned
		assert.Zero(t, r.syncedCount())
	})
}

func TestClientsetWaitsForTheHandlerBeforeItReturns(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, service("a"))
		r := newRecorder(t)
		inUpdate, release := make(chan struct{}), make(chan struct{})
		r.onUpdate = func() {
			close(inUpdate)
			<-release
		}
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			_ = newClientset(t, s.client(), ClientsetOptions{}).Run(ctx, "", r)
		}()
		<-inUpdate
		cancel()
		synctest.Wait()
		select {
		case <-returned:
			t.Error("Run returned while the handler was at work")
		default:
		}
		close(release)
		<-returned
	})
}

func TestClientsetRunsAgain(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), node("n1"), node("n2"))
		c := newClientset(t, s.client(), ClientsetOptions{})
		first := newRecorder(t)
		stop := start(t, c, "n1", first)
		first.waitFor("nodes n1", "services default/a")
		first.waitSynced()

		atOnce := newRecorder(t)
		start(t, c, "n2", atOnce)
		atOnce.waitFor("nodes n2", "services default/a")
		atOnce.waitSynced()
		stop()
		s.remove(service("a"))
		atOnce.waitFor("nodes n2")

		again := newRecorder(t)
		start(t, c, "n1", again)
		again.waitSynced()
		assert.Equal(t, []string{"nodes n1"}, again.atSynced)
	})
}

func TestClientsetRunWithAnEndedContextDeliversNothing(t *testing.T) {
	noLeaks(t)
	logger, _ := testLogger(t)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	cancel()
	r := newRecorder(t)
	require.NoError(t, newClientset(t, newAPIServer(t, service("a")).client(), ClientsetOptions{}).Run(ctx, "n1", r))
	assert.Zero(t, r.updateCount())
	assert.Zero(t, r.syncedCount())
}

// The options have the names of those in localstate.ClusterOptions that use the data.
func TestClientsetKeepsDetailsOfEndpointsOnRequest(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		sl, host := slice("a"), "h"
		sl.Endpoints[0].TargetRef, sl.Endpoints[0].Hostname = &corev1.ObjectReference{Kind: "Pod", Name: "p"}, &host
		sl.Endpoints[0].DeprecatedTopology = map[string]string{"x": "y"}
		check := func(r *recorder) {
			got := r.get(keyOf(sl)).(*discoveryv1.EndpointSlice).Endpoints[0]
			assert.Equal(t, sl.Endpoints[0].TargetRef, got.TargetRef)
			assert.Equal(t, &host, got.Hostname)
			assert.Empty(t, got.DeprecatedTopology)
		}
		s.apply(sl)
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{EndpointDetails: true}), "n1", r)
		r.waitSynced()
		check(r) // as listed
		seen := r.updateCount()
		s.apply(sl)
		r.wait("a change", func() bool { return len(r.updates) == seen+1 })
		check(r) // as watched
	})
}

func TestClientsetTakesHeadlessServicesOnRequest(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		headless := service("a")
		headless.Spec.ClusterIP = corev1.ClusterIPNone
		s.apply(headless, labelled(slice("a-1"), corev1.IsHeadlessService, ""), service("b"))
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{HeadlessServices: true}), "n1", r)
		r.waitSynced()
		assert.NotNil(t, r.get(keyOf(headless)))
		assert.NotNil(t, r.get(keyOf(slice("a-1"))))
		assert.NotNil(t, r.get(keyOf(service("b"))))
	})
}

// A program whose AdmitSlice reads annotations gets them, both when a slice is listed and when it changes.
func TestClientsetKeepsAnnotationsOfSlicesOnRequest(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		sl := slice("a-1")
		sl.Annotations = map[string]string{"example.com/network": "blue"}
		s.apply(sl)
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{SliceAnnotations: true}), "n1", r)
		r.waitSynced()
		assert.Equal(t, sl.Annotations, r.get(keyOf(sl)).GetAnnotations())
		sl.Annotations = map[string]string{"example.com/network": "red", "other": "x"}
		s.apply(sl)
		r.wait("changed slice", func() bool { return len(r.objects[keyOf(sl)].GetAnnotations()) == 2 })
		assert.Equal(t, sl.Annotations, r.get(keyOf(sl)).GetAnnotations())
	})
}

func TestClientsetDropsFieldsThatHaveNoSay(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		meta := metav1.ObjectMeta{
			Namespace: "default", Name: "a",
			UID: "8d1f4a52-6a37-4a0c-9f0b-3c1f1b1c7a11", CreationTimestamp: metav1.Unix(1000, 0),
			Labels: map[string]string{"app": "a"},
			Annotations: map[string]string{"note": "x",
				corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Apply", FieldsType: "FieldsV1"}},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}},
			Finalizers:      []string{"f"},
		}
		svc, sl, n := service("a"), slice("a"), node("n1")
		svc.ObjectMeta, sl.ObjectMeta = meta, meta
		sl.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "p"}
		zone, host := "z", "h"
		sl.Endpoints[0].Zone, sl.Endpoints[0].Hostname = &zone, &host
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"i"}}}
		n.Spec.PodCIDRs = []string{"10.1.0.0/24"}
		check := func(r *recorder) {
			gotService := r.get(keyOf(svc)).(*corev1.Service)
			gotSlice := r.get(keyOf(sl)).(*discoveryv1.EndpointSlice)
			for _, o := range []metav1.Object{gotService, gotSlice} {
				assert.Empty(t, o.GetManagedFields())
				assert.Empty(t, o.GetOwnerReferences())
				assert.Empty(t, o.GetFinalizers())
				assert.Equal(t, meta.Labels, o.GetLabels())
			}
			assert.Equal(t, meta.Annotations, gotService.Annotations)
			assert.Equal(t, meta.UID, gotService.UID)
			assert.True(t, gotService.CreationTimestamp.Equal(&meta.CreationTimestamp), gotService.CreationTimestamp)
			assert.Equal(t, map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"},
				gotSlice.Annotations)
			assert.Equal(t, []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Zone: &zone}}, gotSlice.Endpoints)
			gotNode := r.get(keyOf(n)).(*corev1.Node)
			assert.Empty(t, gotNode.Status.Images)
			assert.Equal(t, n.Spec.PodCIDRs, gotNode.Spec.PodCIDRs)
		}
		s.apply(svc, sl, n)
		r := newRecorder(t)
		start(t, newClientset(t, s.client(), ClientsetOptions{}), "n1", r)
		r.waitSynced()
		check(r) // as listed
		seen := r.updateCount()
		s.apply(svc, sl, n)
		r.wait("changes", func() bool { return len(r.updates) == seen+3 })
		check(r) // as watched
	})
}

// listener is a Handler with the method Heard.
type listener struct {
	*recorder
	heard []string
}

func (l *listener) Heard(kind metav1.Object, resourceVersion string) {
	l.heard = append(l.heard, fmt.Sprintf("%T %s, synced %d", kind, resourceVersion, l.synced))
}

// expected returns the kinds from which a Handler expects more.
type expected struct {
	*recorder
	kinds map[string]bool
}

// telling is a Source that delivers to a different Handler.
type telling struct {
	Source
	to Handler
}

func (s telling) Run(ctx context.Context, nodeName string, _ Handler) error {
	return s.Source.Run(ctx, nodeName, s.to)
}

func (e *expected) Heard(kind metav1.Object, resourceVersion string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kinds[fmt.Sprintf("%T", kind)] = resourceVersion != ""
}

// A program that follows the Nodes alone does not wait for a permission, and has them once there is one.
func TestNodesThatMayNotBeListedAreNotWaitedFor(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("n1"), node("n2"))
		s.setRefuse(forbid(nodes))
		r := newRecorder(t)
		_, logs := startLogged(t, newClientset(t, s.client(), ClientsetOptions{OnlyNodes: true}), AllNodes, r)
		r.waitSynced()
		assert.Empty(t, r.atSynced)
		time.Sleep(10 * time.Minute) // virtual
		assert.Equal(t, 1, countIn(logs(), "Continuing as if there were none"), "once, not at every attempt")
		s.setRefuse(nil)
		r.waitFor("nodes n1", "nodes n2")
	})
}

// ServiceCIDRs that are not served any more, or not to this program, are not waited for.
func TestNothingIsHeardOfAKindThatIsNotServed(t *testing.T) {
	for name, refuse := range map[string]func(r apiserver.Request) error{
		"forbidden": forbid(serviceCIDRs),
		"missing": func(r apiserver.Request) error {
			if kindOfRequest(r) == serviceCIDRs {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "servicecidrs"}, "")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t, service("a"), serviceCIDR("kubernetes"))
				e := &expected{newRecorder(t), map[string]bool{}}
				start(t, telling{newClientset(t, s.client(), ClientsetOptions{}), e}, "", e.recorder)
				e.waitSynced()
				kinds := func() map[string]bool {
					e.mu.Lock()
					defer e.mu.Unlock()
					return maps.Clone(e.kinds)
				}
				assert.Equal(t, map[string]bool{"*v1.Service": true, "*v1.EndpointSlice": true, "*v1.ServiceCIDR": true}, kinds())
				s.setRefuse(refuse)
				s.Cut()
				s.Compact()
				time.Sleep(10 * time.Minute) // virtual
				assert.Equal(t, map[string]bool{"*v1.Service": true, "*v1.EndpointSlice": true, "*v1.ServiceCIDR": false}, kinds())
			})
		})
	}
}

// A list, and everything that a watch sends, show that the API server is alive, and up to which version its changes
// have been delivered.
func TestAHandlerHearsThatTheAPIServerIsAlive(t *testing.T) {
	l := &listener{recorder: newRecorder(t)}
	store := newNameStore(services, l, l.Synced)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}
	require.NoError(t, store.Replace([]any{service}, "1"))
	store.UpdateResourceVersion("2")
	require.NoError(t, store.Replace(nil, "7"))
	assert.Equal(t, []string{"*v1.Service 1, synced 0", "*v1.Service 2, synced 1", "*v1.Service 7, synced 1"}, l.heard)
	gone := l.updates[1][0]
	assert.True(t, gone.Deleted)
	assert.Equal(t, "7", gone.Object.GetResourceVersion(), "a deletion that a list shows is not older than the list")
}
