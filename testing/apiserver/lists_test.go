package apiserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// withServices runs a test on a server with services in two namespaces, in virtual time: client-go waits a second
// before it repeats what is to be asked later.
func withServices(t *testing.T, f func(t *testing.T, s *apiserver.Server, client typedcorev1.ServiceInterface)) {
	bubble(t, func(t *testing.T, s *apiserver.Server, client kubernetes.Interface) {
		require.NoError(t, s.Delete(service("a", ""), service("b", "")))
		for i := range 5 {
			set(t, s, service(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", i+1)))
		}
		set(t, s, kube.Service("other/headless").ClusterIP("None").Label("app", "db").Port("x", 1).Build())
		f(t, s, client.CoreV1().Services(""))
	})
}

func names(list *corev1.ServiceList) (names []string) {
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

func TestSelectorsSelect(t *testing.T) {
	withServices(t, func(t *testing.T, _ *apiserver.Server, client typedcorev1.ServiceInterface) {
		for _, tc := range []struct {
			labels, fields string
			want           []string
		}{
			{"", "", []string{"s0", "s1", "s2", "s3", "s4", "headless"}},
			{"app=db", "", []string{"headless"}},
			{"!app", "metadata.name!=s1", []string{"s0", "s2", "s3", "s4"}},
			{"", "spec.clusterIP!=None", []string{"s0", "s1", "s2", "s3", "s4"}},
			{"", "metadata.namespace=other", []string{"headless"}},
			{"app=none", "", nil},
		} {
			list, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: tc.labels, FieldSelector: tc.fields})
			require.NoError(t, err)
			assert.Equal(t, tc.want, names(list), "%s %s", tc.labels, tc.fields)
		}
		_, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.externalName=x"})
		assert.True(t, apierrors.IsBadRequest(err), "%v", err)
		_, err = client.List(t.Context(), metav1.ListOptions{LabelSelector: "%"})
		assert.True(t, apierrors.IsBadRequest(err), "%v", err)
	})
}

// The pages of a list show one state, until that has expired.
func TestAListComesInPages(t *testing.T) {
	withServices(t, func(t *testing.T, s *apiserver.Server, client typedcorev1.ServiceInterface) {
		first, err := client.List(t.Context(), metav1.ListOptions{Limit: 2})
		require.NoError(t, err)
		assert.Equal(t, []string{"s0", "s1"}, names(first))
		assert.EqualValues(t, 4, *first.RemainingItemCount)

		set(t, s, service("s2a", "10.96.0.100"), service("s4", "10.96.0.101"))
		require.NoError(t, s.Delete(service("s3", "")))
		second, err := client.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: first.Continue})
		require.NoError(t, err)
		assert.Equal(t, []string{"s2", "s3", "s4"}, names(second), "what there was at the first page")
		assert.Equal(t, "10.96.0.5", second.Items[2].Spec.ClusterIP)
		assert.Equal(t, first.ResourceVersion, second.ResourceVersion)
		last, err := client.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: second.Continue})
		require.NoError(t, err)
		assert.Equal(t, []string{"headless"}, names(last))
		assert.Empty(t, last.Continue)

		whole, err := client.List(t.Context(), metav1.ListOptions{Limit: 2, ResourceVersion: "0"})
		require.NoError(t, err)
		assert.Len(t, whole.Items, 6, "from a cache the limit has no effect")

		s.Compact()
		_, err = client.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: second.Continue})
		assert.True(t, apierrors.IsResourceExpired(err), "%v", err)
	})
}

func TestAListIsOfAVersion(t *testing.T) {
	withServices(t, func(t *testing.T, s *apiserver.Server, client typedcorev1.ServiceInterface) {
		then := s.Version()
		set(t, s, service("new", "10.96.0.50"))
		list := func(version int64, match metav1.ResourceVersionMatch) (*corev1.ServiceList, error) {
			return client.List(t.Context(), metav1.ListOptions{ResourceVersion: strconv.FormatInt(version, 10),
				ResourceVersionMatch: match})
		}
		exact, err := list(then, metav1.ResourceVersionMatchExact)
		require.NoError(t, err)
		assert.NotContains(t, names(exact), "new")
		assert.Equal(t, fmt.Sprint(then), exact.ResourceVersion)
		newer, err := list(then, metav1.ResourceVersionMatchNotOlderThan)
		require.NoError(t, err)
		assert.Contains(t, names(newer), "new")
		_, err = list(s.Version()+1, "")
		assert.True(t, apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), "%v", err)
		s.Compact()
		_, err = list(then, metav1.ResourceVersionMatchExact)
		assert.True(t, apierrors.IsResourceExpired(err), "%v", err)
	})
}

func TestARequestFails(t *testing.T) {
	withServices(t, func(t *testing.T, s *apiserver.Server, client typedcorev1.ServiceInterface) {
		list := func() error {
			_, err := client.List(t.Context(), metav1.ListOptions{})
			return err
		}
		busy := 0
		s.SetFaults(func(context.Context, apiserver.Request) (f apiserver.Fault) {
			if busy++; busy == 1 {
				f.Err = apierrors.NewTooManyRequests("later", 0)
			}
			return f
		})
		assert.True(t, apierrors.IsTooManyRequests(list()))
		require.NoError(t, list())

		s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault {
			return apiserver.Fault{Err: errors.New("away")}
		})
		require.ErrorContains(t, list(), "away")

		arrived, release := make(chan struct{}), make(chan struct{})
		s.SetFaults(func(context.Context, apiserver.Request) (f apiserver.Fault) {
			close(arrived)
			<-release
			return f
		})
		late := make(chan error)
		go func() { late <- list() }()
		<-arrived
		select {
		case err := <-late:
			t.Error("answered before its time", err)
		default:
		}
		close(release)
		require.NoError(t, <-late)
	})
}

// A replica that lags behind answers with what it knows, unless it is asked for consistency or for what it cannot know.
func TestAReplicaLagsBehind(t *testing.T) {
	withServices(t, func(t *testing.T, s *apiserver.Server, client typedcorev1.ServiceInterface) {
		then := s.Version()
		set(t, s, service("new", "10.96.0.50"), service("s1", "10.96.0.51"))
		require.NoError(t, s.Delete(service("s2", "")))
		s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault { return apiserver.Fault{AsOf: then} })

		stale, err := client.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		require.NoError(t, err)
		assert.Equal(t, []string{"s0", "s1", "s2", "s3", "s4", "headless"}, names(stale))
		assert.Equal(t, "10.96.0.2", stale.Items[1].Spec.ClusterIP)
		assert.Equal(t, fmt.Sprint(then), stale.ResourceVersion)
		consistent, err := client.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		assert.Equal(t, []string{"new", "s0", "s1", "s3", "s4", "headless"}, names(consistent))
		_, err = client.List(t.Context(), metav1.ListOptions{ResourceVersion: consistent.ResourceVersion})
		assert.True(t, apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), "%v", err)
	})
}

// In JSON a list says its type and its items do not, as with a real API server; a single object does, even if it was
// given without.
func TestWhatSaysItsType(t *testing.T) {
	_, config := newServer(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	config.ContentType = "application/json"
	nodes := clientOf(t, config).CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Equal(t, "n1", list.Items[0].Name)
	assert.Empty(t, list.Items[0].TypeMeta)
	answer, err := http.Get(config.Host + "/api/v1/nodes/n1")
	require.NoError(t, err)
	defer answer.Body.Close()
	var node corev1.Node
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&node))
	assert.Equal(t, metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, node.TypeMeta)
}
