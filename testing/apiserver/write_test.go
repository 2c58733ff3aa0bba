package apiserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func TestClientsWrite(t *testing.T) {
	_, config := newServer(t, kube.Node("n1").Build())
	client := clientOf(t, config)
	ctx := t.Context()
	leases := client.CoordinationV1().Leases("kube-node-lease")
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	_, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	first, err := leases.Create(ctx, lease, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "kube-node-lease", first.Namespace)
	assert.NotEmpty(t, first.UID)
	_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	assert.True(t, apierrors.IsAlreadyExists(err), "%v", err)

	first.Labels = map[string]string{"a": "b"}
	second, err := leases.Update(ctx, first, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = leases.Update(ctx, first, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.NotEqual(t, first.ResourceVersion, second.ResourceVersion)
	got, err := leases.Get(ctx, "n1", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, second, got)

	_, err = client.CoreV1().Nodes().Patch(ctx, "n1", types.StrategicMergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False"}]}}`), metav1.PatchOptions{},
		"status")
	require.NoError(t, err)
	node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, corev1.NodeNetworkUnavailable, node.Status.Conditions[0].Type)
	_, err = client.CoreV1().Nodes().Patch(ctx, "n1", types.JSONPatchType, []byte(`[]`), metav1.PatchOptions{})
	assert.True(t, apierrors.IsUnsupportedMediaType(err), "%v", err)

	require.NoError(t, leases.Delete(ctx, "n1", metav1.DeleteOptions{}))
	assert.True(t, apierrors.IsNotFound(leases.Delete(ctx, "n1", metav1.DeleteOptions{})))
	event, err := client.EventsV1().Events("default").Create(ctx,
		&eventsv1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: "started-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Regexp(t, "^started-.{5}$", event.Name)
}

// A client may delete an object only if it is the one that it knows.
func TestPreconditionsOfADeletion(t *testing.T) {
	_, config := newServer(t)
	leases := clientOf(t, config).CoordinationV1().Leases("default")
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	uid, version := types.UID("another"), "1000000"
	for _, p := range []metav1.Preconditions{{ResourceVersion: &version}, {UID: &uid}} {
		err = leases.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &p})
		assert.True(t, apierrors.IsConflict(err), "%v", err)
	}
	p := &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}
	require.NoError(t, leases.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: p}))
	_, err = leases.Get(t.Context(), "a", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestReviewsSayYes(t *testing.T) {
	_, config := newServer(t)
	client := clientOf(t, config)
	token, err := client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{},
		metav1.CreateOptions{})
	require.NoError(t, err)
	assert.True(t, token.Status.Authenticated)
	access, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
		&authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.True(t, access.Status.Allowed)
	self, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.True(t, self.Status.Allowed)
}

func TestDiscoveryNamesWhatIsServed(t *testing.T) {
	_, config := newServer(t)
	client := clientOf(t, config).Discovery()
	groups, lists, err := client.ServerGroupsAndResources()
	require.NoError(t, err)
	assert.Greater(t, len(groups), 10)
	served := map[string]bool{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			served[list.GroupVersion+" "+r.Name] = r.Namespaced
		}
	}
	for resource, namespaced := range map[string]bool{
		"v1 services": true, "v1 nodes": false, "v1 endpoints": true, "v1 namespaces": false,
		"discovery.k8s.io/v1 endpointslices": true, "networking.k8s.io/v1 servicecidrs": false,
		"networking.k8s.io/v1 networkpolicies": true, "events.k8s.io/v1 events": true,
		"coordination.k8s.io/v1 leases": true, "authentication.k8s.io/v1 tokenreviews": false,
	} {
		got, ok := served[resource]
		assert.True(t, ok, resource)
		assert.Equal(t, namespaced, got, resource)
	}
	assert.NotContains(t, served, "discovery.k8s.io/v1beta1 endpointslices")
	version, err := client.ServerVersion()
	require.NoError(t, err)
	assert.Equal(t, "1", version.Major)
}

func TestWhatIsNotServedIsNotFound(t *testing.T) {
	_, config := newServer(t)
	for path, want := range map[string]int{
		"/readyz": 200, "/version": 200, "/api/v1/services": 200, "/apis/discovery.k8s.io": 200,
		"/apis/discovery.k8s.io/v1beta1/endpointslices": 404, "/apis/example.com/v1/things": 404, "/api/v1/nodes/n1": 404,
		"/openapi/v2": 404, "/apis/example.com": 404, "/apis/example.com/v1": 404, "/api/v1/nodes/n1/proxy": 404,
		"/apis/authentication.k8s.io/v1/tokenreviews": 405,
	} {
		answer, err := http.Get(config.Host + path)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, answer.Body)
		assert.Equal(t, want, answer.StatusCode, path)
		answer.Body.Close()
	}
}

func TestAConnectionEndsWithoutAnAnswer(t *testing.T) {
	s, config := newServer(t)
	s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault {
		return apiserver.Fault{Err: errors.New("away")}
	})
	answer, err := http.Get(config.Host + "/api/v1/services")
	if err == nil {
		answer.Body.Close()
	}
	require.ErrorIs(t, err, io.EOF)
}

func TestAnObjectOfAnotherKindIsRefused(t *testing.T) {
	s, _ := newServer(t)
	before := s.Version()
	err := s.Set(kube.Node("n1").Build(), &authenticationv1.TokenReview{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	require.ErrorContains(t, err, "TokenReview /x")
	require.ErrorContains(t, s.Set(&metav1.ObjectMeta{Name: "y"}), "not an API object")
	assert.Equal(t, before, s.Version(), "all or nothing")
}

func TestAKubeconfigLeadsToTheServer(t *testing.T) {
	_, config := newServer(t, kube.Node("n1").Build())
	file, err := clientcmd.RESTConfigFromKubeConfig([]byte(apiserver.Kubeconfig(config.Host)))
	require.NoError(t, err)
	_, err = clientOf(t, file).CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
}

func TestTheReleaseIsSettable(t *testing.T) {
	s, err := apiserver.New()
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(s.Config())
	require.NoError(t, err)
	for _, release := range []string{"", "1", "latest"} {
		require.Error(t, s.SetRelease(release))
	}
	for _, want := range []string{"v1.37.0", "v1.36.4", "v1.38.0-alpha.1"} {
		require.NoError(t, s.SetRelease(want))
		got, err := client.Discovery().ServerVersion()
		require.NoError(t, err)
		assert.Equal(t, want, got.GitVersion)
		assert.Equal(t, "1", got.Major)
		assert.Contains(t, want, "v1."+got.Minor+".")
	}
}
