package apiserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
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
	for kind, patch := range map[types.PatchType]string{
		types.JSONPatchType:  `[{"op":"add","path":"/metadata/labels","value":{"by":"json"}}]`,
		types.MergePatchType: `{"metadata":{"labels":{"by":"merge"}}}`,
	} {
		node, err = client.CoreV1().Nodes().Patch(ctx, "n1", kind, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err, kind)
		assert.Contains(t, string(kind), node.Labels["by"])
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, "n1", "application/unknown", []byte(`{}`), metav1.PatchOptions{})
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

// kubectl sends options without a kind, and one of another group.
func TestOptionsOfADeletionNeedNoKind(t *testing.T) {
	s, config := newServer(t)
	for _, options := range []string{`{"propagationPolicy":"Background"}`,
		`{"kind":"DeleteOptions","apiVersion":"apps/v1","gracePeriodSeconds":0}`, ""} {
		set(t, s, kube.Service("default/web").Build())
		code := do(t, config, http.MethodDelete, "/api/v1/namespaces/default/services/web", "application/json", options)
		assert.Equal(t, http.StatusOK, code, options)
	}
	code := do(t, config, http.MethodDelete, "/api/v1/namespaces/default/services/web", "application/json", "")
	assert.Equal(t, http.StatusNotFound, code)
	set(t, s, kube.Service("default/web").Build())
	code = do(t, config, http.MethodDelete, "/api/v1/namespaces/default/services/web", "application/json", `{"`)
	assert.Equal(t, http.StatusBadRequest, code)
}

// do sends a request, and returns the code of the answer.
func do(t *testing.T, config *rest.Config, method, path, contentType, body string) int {
	r, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", contentType)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer.StatusCode
}

// A dry run answers as if it had been done, and changes nothing.
func TestADryRunChangesNothing(t *testing.T) {
	s, config := newServer(t, kube.Service("default/web").Build())
	services := clientOf(t, config).CoreV1().Services("default")
	all := []string{metav1.DryRunAll}
	before := s.Version()
	created, err := services.Create(t.Context(), kube.Service("default/new").Build(), metav1.CreateOptions{DryRun: all})
	require.NoError(t, err)
	assert.NotEmpty(t, created.UID)
	assert.Empty(t, created.ResourceVersion)
	web, err := services.Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	web.Labels = map[string]string{"a": "b"}
	updated, err := services.Update(t.Context(), web, metav1.UpdateOptions{DryRun: all})
	require.NoError(t, err)
	assert.Equal(t, "b", updated.Labels["a"])
	assert.Equal(t, web.ResourceVersion, updated.ResourceVersion)
	_, err = services.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"c"}}}`),
		metav1.PatchOptions{DryRun: all})
	require.NoError(t, err)
	require.NoError(t, services.Delete(t.Context(), "web", metav1.DeleteOptions{DryRun: all}))
	assert.Equal(t, before, s.Version())
	_, err = services.Create(t.Context(), kube.Service("default/new").Build(),
		metav1.CreateOptions{DryRun: []string{"Some"}})
	assert.True(t, apierrors.IsBadRequest(err), "%v", err)
}

// An object keeps its UID and its age. A client that names another UID means another object.
func TestTheUIDStays(t *testing.T) {
	_, config := newServer(t)
	services := clientOf(t, config).CoreV1().Services("default")
	first, err := services.Create(t.Context(), kube.Service("default/web").Build(), metav1.CreateOptions{})
	require.NoError(t, err)
	next := kube.Service("default/web").Build()
	next.UID, next.CreationTimestamp, next.Labels = "", metav1.Time{}, map[string]string{"a": "b"}
	second, err := services.Update(t.Context(), next, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, first.UID, second.UID)
	assert.Equal(t, first.CreationTimestamp, second.CreationTimestamp)
	next.UID = "another"
	_, err = services.Update(t.Context(), next, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	third, err := services.Update(t.Context(), second, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, second.ResourceVersion, third.ResourceVersion, "nothing has changed")
}

// Server-side apply merges what several managers want, and tells them of conflicts.
func TestServerSideApply(t *testing.T) {
	_, config := newServer(t)
	services := clientOf(t, config).CoreV1().Services("default")
	want := func(label string, port int32) *corev1apply.ServiceApplyConfiguration {
		return corev1apply.Service("web", "default").WithLabels(map[string]string{label: "yes"}).
			WithSpec(corev1apply.ServiceSpec().WithPorts(corev1apply.ServicePort().WithName("http").WithPort(port)))
	}
	a, err := services.Apply(t.Context(), want("a", 80), metav1.ApplyOptions{FieldManager: "a"})
	require.NoError(t, err)
	assert.NotEmpty(t, a.UID)
	again, err := services.Apply(t.Context(), want("a", 80), metav1.ApplyOptions{FieldManager: "a"})
	require.NoError(t, err)
	assert.Equal(t, a.ResourceVersion, again.ResourceVersion)
	other := corev1apply.Service("web", "default").WithLabels(map[string]string{"a": "no", "b": "yes"})
	_, err = services.Apply(t.Context(), other, metav1.ApplyOptions{FieldManager: "b"})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	b, err := services.Apply(t.Context(), other, metav1.ApplyOptions{FieldManager: "b", Force: true})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": "no", "b": "yes"}, b.Labels)
	assert.Equal(t, int32(80), b.Spec.Ports[0].Port)
	b, err = services.Apply(t.Context(), corev1apply.Service("web", "default"), metav1.ApplyOptions{FieldManager: "b"})
	require.NoError(t, err)
	assert.Empty(t, b.Labels, "nobody wants them any more")
	b.Labels = map[string]string{"a": "no"}
	_, err = services.Update(t.Context(), b, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = services.Apply(t.Context(), want("a", 80), metav1.ApplyOptions{FieldManager: "c"})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	_, err = services.Apply(t.Context(), want("a", 80), metav1.ApplyOptions{})
	assert.True(t, apierrors.IsBadRequest(err), "%v", err)
}

// A patch that cannot be applied to the object is refused like by a real server: with 422, not 400 as one that is no
// patch.
func TestWrongPatches(t *testing.T) {
	s, config := newServer(t)
	require.NoError(t, s.Set(kube.Service("web").ClusterIP("10.96.0.1").Port("http", 80).Build()))
	before := s.Version()
	for _, tc := range []struct {
		kind  types.PatchType
		patch string
		want  int
	}{
		{types.JSONPatchType, `[{"op":"replace","path":"/metadata/labels/none","value":"x"}]`, 422},
		{types.JSONPatchType, `[{"op":"test","path":"/metadata/name","value":"other"}]`, 422},
		{types.JSONPatchType, `[{"op":"replace","path":"/spec/ports","value":7}]`, 422},
		{types.JSONPatchType, "[" + strings.Repeat(`{"op":"test","path":"/metadata/name","value":"web"},`, 10_000) +
			`{"op":"test","path":"/metadata/name","value":"web"}]`, 413},
		{types.JSONPatchType, `{`, 400},
		{types.MergePatchType, `{"spec":{"ports":7}}`, 422},
		{types.MergePatchType, `{"kind":"Node"}`, 422},
		{types.MergePatchType, `{`, 400},
		{types.StrategicMergePatchType, `{"spec":{"sessionAffinity":{}}}`, 422},
		{types.StrategicMergePatchType, `{`, 400},
	} {
		got := do(t, config, http.MethodPatch, "/api/v1/namespaces/default/services/web", string(tc.kind), tc.patch)
		assert.Equal(t, tc.want, got, "%s %.100s", tc.kind, tc.patch)
	}
	assert.Equal(t, before, s.Version())
	client := clientOf(t, config).CoreV1().Services("default")
	_, err := client.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"sessionAffinity":{}}}`),
		metav1.PatchOptions{})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	assert.ErrorContains(t, err, "patch: Invalid value: \"map[spec:map[sessionAffinity:map[]]]\"")
}

// With strict validation, unknown fields are errors.
func TestUnknownFieldsCanBeErrors(t *testing.T) {
	s, config := newServer(t)
	const service = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"portz":[]}}`
	const path = "/api/v1/namespaces/default/services?dryRun=All&fieldValidation="
	assert.Equal(t, http.StatusBadRequest, do(t, config, http.MethodPost, path+"Strict", "application/json",
		service))
	assert.Equal(t, http.StatusCreated, do(t, config, http.MethodPost, path+"Ignore", "application/json",
		service))
	require.NoError(t, s.Set(kube.Service("web").ClusterIP("10.96.0.1").Build()))
	for _, validation := range []string{metav1.FieldValidationStrict, metav1.FieldValidationIgnore} {
		_, err := clientOf(t, config).CoreV1().Services("default").Patch(t.Context(), "web", types.MergePatchType,
			[]byte(`{"spec":{"portz":[]}}`), metav1.PatchOptions{FieldValidation: validation})
		assert.Equal(t, validation == metav1.FieldValidationStrict, apierrors.IsInvalid(err), "%s: %v", validation, err)
		assert.Equal(t, validation == metav1.FieldValidationIgnore, err == nil, "%s: %v", validation, err)
	}
	assert.Equal(t, http.StatusUnsupportedMediaType, do(t, config, http.MethodPost, path+"Ignore", "application/cbor",
		service))
	assert.Equal(t, http.StatusNotAcceptable, do(t, config, http.MethodGet, "/api/v1/services", "application/cbor",
		""))
}

// Clients of metadata, and those without types.
func TestOtherClients(t *testing.T) {
	s, config := newServer(t, kube.Service("default/web").Build())
	h, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(h.CloseIdleConnections)
	services := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	m, err := metadata.NewForConfigAndClient(config, h)
	require.NoError(t, err)
	partial, err := m.Resource(services).Namespace("default").Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "web", partial.Name)
	list, err := m.Resource(services).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	assert.Equal(t, "web", list.Items[0].Name)
	watch, err := m.Resource(services).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer watch.Stop()
	set(t, s, kube.Service("default/new").Build())
	event := <-watch.ResultChan()
	require.IsType(t, &metav1.PartialObjectMetadata{}, event.Object)
	assert.Equal(t, "new", event.Object.(*metav1.PartialObjectMetadata).Name)
	require.NoError(t, m.Resource(services).Namespace("default").Delete(t.Context(), "new", metav1.DeleteOptions{}))

	d, err := dynamic.NewForConfigAndClient(config, h)
	require.NoError(t, err)
	all, err := d.Resource(services).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, all.Items, 1)
	assert.Equal(t, "Service", all.Items[0].GetKind())
	object := all.Items[0].DeepCopy()
	object.SetLabels(map[string]string{"a": "b"})
	object, err = d.Resource(services).Namespace("default").Update(t.Context(), object, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "b", object.GetLabels()["a"])
	require.NoError(t, d.Resource(services).Namespace("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
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
	served, short, all := map[string]bool{}, map[string][]string{}, []string{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			served[list.GroupVersion+" "+r.Name] = r.Namespaced
			short[list.GroupVersion+" "+r.Name] = r.ShortNames
			if slices.Contains(r.Categories, "all") {
				all = append(all, list.GroupVersion+" "+r.Name)
			}
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
	assert.Equal(t, []string{"svc"}, short["v1 services"])
	assert.Equal(t, []string{"csr"}, short["certificates.k8s.io/v1 certificatesigningrequests"])
	assert.Equal(t, []string{"vac"}, short["storage.k8s.io/v1 volumeattributesclasses"])
	assert.ElementsMatch(t, []string{"v1 pods", "v1 services", "v1 replicationcontrollers", "apps/v1 daemonsets",
		"apps/v1 deployments", "apps/v1 replicasets", "apps/v1 statefulsets", "autoscaling/v1 horizontalpodautoscalers",
		"autoscaling/v2 horizontalpodautoscalers", "batch/v1 cronjobs", "batch/v1 jobs"}, all, "as kubectl get all")
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
