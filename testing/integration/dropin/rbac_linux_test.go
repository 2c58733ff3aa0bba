package dropin_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// manifest is what cmd/kube-proxy/deploy/nftables/manifest.yaml holds.
type manifest struct {
	serviceAccount *corev1.ServiceAccount
	role           *rbacv1.ClusterRole
	binding        *rbacv1.ClusterRoleBinding
	config         *corev1.ConfigMap
	daemonSet      *appsv1.DaemonSet
}

func readManifest(t *testing.T) *manifest {
	file, err := os.ReadFile("../../../cmd/kube-proxy/deploy/nftables/manifest.yaml")
	require.NoError(t, err)
	m := &manifest{}
	for documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(file))); ; {
		buf := make([]byte, len(file))
		n, err := documents.Read(buf)
		if errors.Is(err, io.EOF) {
			return m
		}
		require.NoError(t, err)
		var object runtime.Object
		object, _, err = scheme.Codecs.UniversalDeserializer().Decode(buf[:n], nil, nil)
		require.NoError(t, err)
		switch o := object.(type) {
		case *corev1.ServiceAccount:
			m.serviceAccount = o
		case *rbacv1.ClusterRole:
			m.role = o
		case *rbacv1.ClusterRoleBinding:
			m.binding = o
		case *corev1.ConfigMap:
			m.config = o
		case *appsv1.DaemonSet:
			m.daemonSet = o
		default:
			t.Fatalf("the manifest has a %T, which this test does not know", o)
		}
	}
}

// apply creates all objects except the DaemonSet, which is a dry run, and returns a token of the service account.
func (m *manifest) apply(l *lab) (token string) {
	ctx, opts := l.t.Context(), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	l.awaitNamespace(m.serviceAccount.Namespace)
	_, err := l.Client.CoreV1().ServiceAccounts(m.serviceAccount.Namespace).Create(ctx, m.serviceAccount, opts)
	require.NoError(l.t, err)
	_, err = l.Client.RbacV1().ClusterRoles().Create(ctx, m.role, opts)
	require.NoError(l.t, err)
	_, err = l.Client.RbacV1().ClusterRoleBindings().Create(ctx, m.binding, opts)
	require.NoError(l.t, err)
	_, err = l.Client.CoreV1().ConfigMaps(m.config.Namespace).Create(ctx, m.config, opts)
	require.NoError(l.t, err)
	opts.DryRun = []string{metav1.DryRunAll}
	_, err = l.Client.AppsV1().DaemonSets(m.daemonSet.Namespace).Create(ctx, m.daemonSet, opts)
	require.NoError(l.t, err)

	request, err := l.Client.CoreV1().ServiceAccounts(m.serviceAccount.Namespace).CreateToken(ctx,
		m.daemonSet.Spec.Template.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(l.t, err)
	return request.Status.Token
}

// awaitNamespace waits until the API server has created one of its own namespaces.
func (l *lab) awaitNamespace(name string) {
	w, err := l.Client.CoreV1().Namespaces().Watch(l.t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(l.t, err)
	defer w.Stop()
	<-w.ResultChan()
}

// startAs runs the program with the manifest's configuration and a token of its service account. The rest stands in for
// the DaemonSet: a kubeconfig instead of the pod's own credentials, and the flag for the node's name.
func (m *manifest) startAs(l *lab, token string, env ...string) *program {
	kubeconfig := l.Kubeconfig("service-account", token, l.relay.Port)
	file := filepath.Join(l.t.TempDir(), "config.yaml")
	text := m.config.Data["config.yaml"] +
		fmt.Sprintf("\nclientConnection:\n  kubeconfig: %s\nlinux:\n  oomScoreAdj: 0\n  conntrack:\n    maxPerCore: 0\n",
			kubeconfig)
	require.NoError(l.t, os.WriteFile(file, []byte(text), 0o600))
	var args []string
	for _, arg := range m.daemonSet.Spec.Template.Spec.Containers[0].Args {
		arg = strings.ReplaceAll(arg, "$(NODE_NAME)", nodeName)
		args = append(args, strings.ReplaceAll(arg, "/var/lib/kube-proxy/config.yaml", file))
	}
	return l.run(env, mustBuild(l.t), args...)
}

func TestTheManifestGrantsEnough(t *testing.T) {
	t.Parallel()
	l := newLab(t, cluster.Options{})
	m := readManifest(t)
	b := newBusy(l)
	l.setEndpoints("busy", endpoint{l.newPod("a"), nodeName})
	l.occupyHealthCheck()
	token := m.apply(l)
	for _, rule := range m.role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					l.awaitAccess(m.serviceAccount, group, resource, verb, true)
				}
			}
		}
	}
	p := m.startAs(l, token)
	b.awaitPod("a")
	b.awaitApplied()
	// Events are written in the background; the second one of a kind is a patch.
	l.awaitEvent(healthCheckFailure, 1)
	l.service("another")
	l.awaitEvent(healthCheckFailure, 2)
	b.awaitApplied()
	assert.NotContains(t, strings.ToLower(p.logged()), "forbidden")
}

func TestTheManifestGrantsNoMoreThanIsNeeded(t *testing.T) {
	t.Parallel()
	l := newLab(t, cluster.Options{})
	m := readManifest(t)
	l.occupyHealthCheck()
	token := m.apply(l)
	for i, rule := range m.role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				without := m.role.DeepCopy()
				// Another resource of the rule keeps its rights.
				without.Rules[i].Resources = slices.DeleteFunc(without.Rules[i].Resources,
					func(r string) bool { return r == resource })
				left := slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == verb })
				without.Rules = append(without.Rules,
					rbacv1.PolicyRule{APIGroups: rule.APIGroups, Resources: []string{resource}, Verbs: left})
				if len(without.Rules[i].Resources) == 0 {
					without.Rules = slices.Delete(without.Rules, i, i+1)
				}
				_, err := l.Client.RbacV1().ClusterRoles().Update(t.Context(), without, metav1.UpdateOptions{})
				require.NoError(t, err)
				l.awaitAccess(m.serviceAccount, rule.APIGroups[0], resource, verb, false)

				var env []string
				if verb == "list" {
					// An API server that does not stream lists.
					env = append(env, "KUBE_FEATURE_WatchListClient=false")
				}
				p := m.startAs(l, token, env...)
				refusal := fmt.Sprintf(`cannot %s resource \"%s\"`, verb, resource)
				if verb == "patch" {
					tried := "Cannot start a health check server"
					p.awaitLog(tried, func(log string) bool { return strings.Contains(log, tried) })
					l.service("touched") // so the health check is tried again, and its event is written again
				}
				p.awaitLog(refusal, func(log string) bool { return strings.Contains(log, refusal) })
				p.kill()
			}
		}
	}
}

// awaitAccess waits until the API server allows something to a service account, or denies it.
func (l *lab) awaitAccess(account *corev1.ServiceAccount, group, resource, verb string, allowed bool) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: group, Resource: resource, Verb: verb,
			Namespace: namespace},
	}}
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(10 * time.Millisecond) { // there is no event to wait for
		r, err := l.Client.AuthorizationV1().SubjectAccessReviews().Create(l.t.Context(), review,
			metav1.CreateOptions{})
		require.NoError(l.t, err)
		if r.Status.Allowed == allowed {
			return
		}
		require.True(l.t, time.Now().Before(deadline), "%s %s is allowed: still %v", verb, resource, r.Status.Allowed)
	}
}
