package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// pod returns a pod of the shop on a node.
func pod(name, node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.PodSpec{NodeName: node}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// shop is a cluster with two nodes, a service, pods, and kubeadm's kube-proxy.
func shop(t *testing.T) *apiserver.Server {
	host := pod("agent", "n1", "192.0.2.1")
	host.Spec.HostNetwork = true
	s, err := apiserver.New(
		kube.Node("n1").InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").Build(),
		kube.Node("n2").InternalIP("192.0.2.2").PodCIDR("10.244.2.0/24").Build(),
		kube.ServiceCIDR("kubernetes", "10.96.0.0/12"),
		kube.Service("shop/web").ClusterIP("10.96.0.10").Port("https", 443).Build(),
		kube.EndpointSlice("shop/web").Port("https", 8443).Endpoint("10.244.1.5").OnNode("n1").
			Endpoint("10.244.2.5").OnNode("n2").Build(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		pod("cart-0", "n2", "10.244.2.9"), pod("six", "n1", "fd00::9"), pod("new", ""), host,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"},
			Data: map[string]string{"config.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n" +
				"kind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\nmode: iptables\n"}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"},
			Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "kube-proxy", Command: []string{"/usr/local/bin/kube-proxy",
					"--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16"}}}}}}},
	)
	require.NoError(t, err)
	return s
}

// serve serves a cluster, and makes it the one that kubectl's flags have as the default.
func serve(t *testing.T, s http.Handler) {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	config, err := clientcmd.Load([]byte(apiserver.Kubeconfig(server.URL)))
	require.NoError(t, err)
	config.Contexts[config.CurrentContext].Namespace = "shop"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	t.Setenv("KUBECONFIG", file)
}

// ask runs a command, and returns its output.
func ask(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), args, &out, io.Discard))
	return out.String()
}

// refused runs a command, and returns its error.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out, io.Discard)
	require.Error(t, err, args)
	assert.Empty(t, out.String())
	return err.Error()
}

// Names are in the namespace of the context, unless they say another one.
func TestNamesAreThoseOfTheContext(t *testing.T) {
	serve(t, shop(t))
	want := ask(t, "explain", "shop/web", "--node", "n1")
	assert.Contains(t, want, "10.244.1.5:8443")
	assert.Equal(t, want, ask(t, "explain", "web", "--node", "n1"))
	assert.Equal(t, want, ask(t, "explain", "shop/web", "--node", "n1", "-n", "other"))
	assert.Contains(t, refused(t, "explain", "web", "--node", "n1", "-n", "other"), "unknown Service other/web: check")
}

// The pod tells its addresses, and its node.
func TestAFlowFromAPod(t *testing.T) {
	serve(t, shop(t))
	for question, want := range map[string]string{
		"pod cart-0 -> web:443":        "local pod 10.244.2.9 -> 10.96.0.10:443/TCP",
		"pod shop/cart-0 -> web:https": "local pod 10.244.2.9 -> 10.96.0.10:443/TCP",
		"pod cart-0 -> 10.96.0.10:443": "local pod 10.244.2.9 -> 10.96.0.10:443/TCP",
		"pod agent -> web":             "node 192.0.2.1 -> 10.96.0.10:443/TCP",
	} {
		assert.Equal(t, want, strings.Split(ask(t, "flow", question), "\n")[0], question)
	}
	assert.Contains(t, ask(t, "flow", "pod cart-0 -> web", "--node", "n1"), "remote pod 10.244.2.9 -> 10.96.0.10:443/TCP")
	assert.Contains(t, ask(t, "flow", "pod agent -> web", "--node", "n2"), "192.0.2.1 -> 10.96.0.10:443/TCP")
	assert.Contains(t, refused(t, "flow", "pod none -> web"),
		"unknown pod shop/none: check the name against kubectl get pods -n shop")
	assert.Contains(t, refused(t, "flow", "pod new -> web"), "kubectl describe pod -n shop new says why")
	assert.Contains(t, refused(t, "flow", "pod six -> web"), "kubectl get service -n shop web -o wide")
}

// The cluster's own kube-proxy tells what it masquerades.
func TestTheProxyOfTheClusterIsAsked(t *testing.T) {
	serve(t, shop(t))
	for _, proxy := range []string{"daemonset", "configmap"} {
		answer := ask(t, "flow", "outside 203.0.113.7 -> web:443", "--node", "n1", "--proxy", proxy)
		assert.Contains(t, answer, "does not pass for a local pod (S30)", proxy)
	}
}

func TestTheNodeHasToBeNamedIfThereAreSeveral(t *testing.T) {
	s := shop(t)
	serve(t, s)
	assert.Equal(t, "nodes treat a Service differently: choose one with --node, of n1 n2", refused(t, "state"))
	require.NoError(t, s.Delete(kube.Node("n2").Build()))
	assert.Equal(t, ask(t, "state", "--node", "n1"), ask(t, "state"))
	require.NoError(t, s.Delete(kube.Node("n1").Build()))
	assert.Contains(t, refused(t, "state"), "kubectl config get-contexts")
	assert.Equal(t, `there is no Node "n3": check --node against kubectl get nodes`, refused(t, "state", "--node", "n3"))
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		require.NoError(t, s.Set(kube.Node(name).Build()))
	}
	assert.Contains(t, refused(t, "state"), "of a b c d e ...")
}

// Without a node preflight compares all of them. The exit code says whether there is a difference.
func TestPreflight(t *testing.T) {
	serve(t, shop(t))
	for code, to := range map[int]string{0: "daemonset", 1: "nftables", 2: "nowhere"} {
		var out bytes.Buffer
		p := &program{out: &out, notes: io.Discard}
		err := p.run(t.Context(), []string{"preflight", "--from", "daemonset", "--to", to, "--same"})
		if err == nil {
			p.exitCode = 0
		}
		assert.Equal(t, code, p.exitCode, to)
		assert.Equal(t, code == 1, errors.Is(err, errDifferences))
		if code < 2 {
			assert.Contains(t, out.String(), "Compared on n1, n2: 1 Service")
		}
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{"preflight", "--node", "n1", "-o", "yaml", "--timeout", "0"}, &out, io.Discard)
	require.ErrorIs(t, err, errDifferences)
	var list []struct{ Nodes []string }
	require.NoError(t, yaml.Unmarshal(out.Bytes(), &list))
	require.NotEmpty(t, list)
	for _, d := range list {
		assert.Equal(t, []string{"n1"}, d.Nodes)
	}
}

// A user who lacks a permission is told so at once, and how an administrator grants all of them.
func TestAMissingPermissionIsNamed(t *testing.T) {
	for resource, args := range map[string][]string{
		"services":       {"explain", "web", "--node", "n1"},
		"endpointslices": {"state", "--node", "n1"},
		"nodes":          {"preflight"},
		"pods":           {"flow", "pod cart-0 -> web"},
		"daemonsets":     {"flow", "node -> web", "--node", "n1", "--proxy", "daemonset"},
		"configmaps":     {"preflight", "--from", "configmap"},
	} {
		for user, flag := range map[string]string{"jane": "--user jane", "o'neill": `--user 'o'\''neill'`,
			"system:serviceaccount:monitoring:reports": "--serviceaccount monitoring:reports"} {
			s := shop(t)
			serve(t, s)
			s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
				if r.Resource.Resource != resource {
					return apiserver.Fault{}
				}
				return apiserver.Fault{Err: apierrors.NewForbidden(r.Resource.GroupResource(), r.Name,
					errors.New(`User "`+user+`" cannot `+r.Verb+` it`))}
			})
			got := refused(t, args...)
			assert.Contains(t, got, resource)
			assert.Contains(t, got, "forbidden")
			assert.True(t, strings.HasSuffix(got, "\n  kubectl serviceproxy rbac "+flag+" | kubectl apply -f -"), got)
		}
	}
}

func TestAnAPIServerThatDoesNotAnswerIsNamed(t *testing.T) {
	s := shop(t)
	serve(t, s)
	s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
		return apiserver.Fault{Err: apierrors.NewUnauthorized("no")}
	})
	assert.Contains(t, refused(t, "state", "--node", "n1"), "log in again, or choose another --context")
	s.SetFaults(func(ctx context.Context, _ apiserver.Request) apiserver.Fault {
		<-ctx.Done()
		return apiserver.Fault{}
	})
	for _, args := range [][]string{{"state"}, {"explain", "web"}, {"flow", "pod cart-0 -> web"}, {"preflight"},
		{"state", "--proxy", "daemonset"}} {
		assert.Equal(t, "no answer after 1ms: does the API server (kubectl cluster-info) exist, and does it answer? "+
			"A larger --timeout waits longer", refused(t, append(args, "--timeout", "1ms")...))
	}
	assert.Contains(t, refused(t, "state", "--context", "none"), "kubectl config view")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(apiserver.Kubeconfig("http://127.0.0.1:1")), 0o600))
	assert.Contains(t, refused(t, "state", "--kubeconfig", file), "does kubectl cluster-info work?")
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.Contains(t, refused(t, "state", "--kubeconfig", file), "there is no kubeconfig: name one with")
}

// The names of objects are completed, and those in the kubeconfig.
func TestCompletion(t *testing.T) {
	s := shop(t)
	serve(t, s)
	require.NoError(t, s.Set(kube.Service("other/db").Build()))
	complete := func(args ...string) []string {
		lines := strings.Split(strings.TrimSpace(ask(t, append([]string{"__complete"}, args...)...)), "\n")
		return lines[:len(lines)-1] // without the directive
	}
	for want, args := range map[string][]string{
		"web shop/": {"explain", ""},
		"other/db":  {"explain", "other/"},
		"":          {"explain", "web", ""},
		"n1 n2":     {"explain", "web", "--node", ""},
		"shop":      {"state", "-n", ""},
		"admin":     {"state", "--user", ""},
		"iptables ipvs nftables daemonset configmap": {"preflight", "--to", ""},
		"text json yaml jsonpath=":                   {"state", "-o", "json"},
		"state":                                      {"st"},
		"preflight":                                  {"pre"},
		"daemonset configmap":                        {"flow", "--proxy", ""},
	} {
		got := complete(args...)
		for i := range got {
			got[i], _, _ = strings.Cut(got[i], "\t") // without what it is
		}
		assert.ElementsMatch(t, strings.Fields(want), got, args)
	}
	s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
		return apiserver.Fault{Err: apierrors.NewForbidden(r.Resource.GroupResource(), "", errors.New("no"))}
	})
	assert.Empty(t, complete("explain", ""), "what may not be read is not completed")
}

// rbac.yaml has what the commands request, and nothing else; and nothing is written.
func TestThePermissionsAreThoseThatAreUsed(t *testing.T) {
	s := shop(t)
	serve(t, s)
	ask(t, "explain", "web", "--node", "n1")
	ask(t, "state", "--node", "n1")
	ask(t, "flow", "pod cart-0 -> web", "--proxy", "configmap")
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"preflight", "--from", "daemonset"}, &out, io.Discard), errDifferences)
	ask(t, "__complete", "explain", "")
	granted := map[string]bool{}
	for _, text := range strings.Split(ask(t, "rbac"), "\n---\n") {
		var role rbacv1.ClusterRole // a Role has the same fields
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), &role))
		assert.Equal(t, roleName, role.Name)
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted[strings.Join([]string{verb, resource, role.Namespace, strings.Join(rule.ResourceNames, "")}, " ")] =
						false
				}
			}
		}
	}
	for _, r := range s.Requests() {
		request := []string{r.Verb, r.Resource.Resource, "", ""}
		if r.Namespace == metav1.NamespaceSystem {
			request = []string{r.Verb, r.Resource.Resource, r.Namespace, r.Name}
		}
		key := strings.Join(request, " ")
		assert.Contains(t, granted, key, r.String())
		granted[key] = true
		if r.StreamsList() { // where the server does not stream it is a list
			granted[strings.Replace(key, "watch", "list", 1)] = true
		}
	}
	for rule, used := range granted {
		assert.True(t, used, "%q is not used", rule)
	}
}

func TestRBACBindsSubjects(t *testing.T) {
	text := ask(t, "rbac", "--user", "jane", "--group", "a/b", "--serviceaccount", "monitoring:reports")
	documents := strings.Split(text, "\n---\n")
	require.Len(t, documents, 4)
	for i, kind := range []string{"ClusterRole", "Role"} {
		var binding rbacv1.ClusterRoleBinding
		require.NoError(t, yaml.UnmarshalStrict([]byte(documents[i+2]), &binding))
		assert.Equal(t, kind+"Binding", binding.Kind)
		assert.Equal(t, kind, binding.RoleRef.Kind)
		assert.Equal(t, "serviceproxy-viewer:user:jane:group:a_b:serviceaccount:monitoring.reports", binding.Name)
		names := []string{}
		for _, s := range binding.Subjects {
			names = append(names, s.Kind+" "+s.Namespace+" "+s.Name)
		}
		slices.Sort(names)
		assert.Equal(t, []string{"Group  a/b", "ServiceAccount monitoring reports", "User  jane"}, names)
	}
}
