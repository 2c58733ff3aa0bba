package dropin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// manifest is what deploy/nftables/manifest.yaml has.
type manifest struct {
	role    rbacv1.ClusterRole
	binding rbacv1.ClusterRoleBinding
	account corev1.ServiceAccount
	config  corev1.ConfigMap
	daemons appsv1.DaemonSet
}

// The manifest for Windows nodes has no unknown fields, fits together with that for Linux and with the
// program, and asks for what HNS needs.
func TestTheManifestForWindows(t *testing.T) {
	data, err := os.ReadFile("../cmd/kube-proxy/deploy/windows/manifest.yaml")
	require.NoError(t, err)
	documents := strings.Split(string(data), "\n---\n")
	require.Len(t, documents, 2)
	var c corev1.ConfigMap
	var d appsv1.DaemonSet
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[0]), &c))
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[1]), &d))
	pod := d.Spec.Template.Spec
	assert.True(t, pod.HostNetwork && *pod.SecurityContext.WindowsOptions.HostProcess)
	assert.Equal(t, map[string]string{"kubernetes.io/os": "windows", "service-proxy": "kube-proxy-lib"}, pod.NodeSelector)
	assert.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels)
	account := readManifest(t).account
	assert.Equal(t, []string{account.Name, account.Namespace, account.Namespace},
		[]string{pod.ServiceAccountName, d.Namespace, c.Namespace})

	var k v1alpha2.KubeProxyConfiguration
	require.NoError(t, yaml.UnmarshalStrict([]byte(c.Data["config.yaml"]), &k))
	assert.Equal(t, v1alpha2.ProxyModeKernelspace, k.Mode)
	assert.Equal(t, "cbr0", k.Winkernel.NetworkName)
	require.Len(t, pod.Volumes, 1)
	require.Len(t, pod.Containers, 1)
	assert.Equal(t, c.Name, pod.Volumes[0].ConfigMap.Name)
	proxy := pod.Containers[0]
	assert.Equal(t, pod.Volumes[0].Name, proxy.VolumeMounts[0].Name)
	variables := map[string]bool{}
	for _, v := range proxy.Env {
		variables[v.Name] = true
	}
	assert.True(t, variables["KUBERNETES_SERVICE_HOST"] && variables["KUBERNETES_SERVICE_PORT"])

	var args []string
	// Elsewhere there is no such mode.
	file := writeFile(t, strings.Replace(c.Data["config.yaml"], "mode: kernelspace", "mode: "+nameOfOwnMode(), 1))
	for _, arg := range proxy.Args {
		if variables["NODE_NAME"] {
			arg = strings.ReplaceAll(arg, "$(NODE_NAME)", "n1")
		}
		args = append(args, strings.ReplaceAll(arg, path.Join(proxy.VolumeMounts[0].MountPath, "config.yaml"), file))
	}
	s, warnings, err := fromArgs(t, args...)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, file, s.Flags["config"])
	assert.Equal(t, "n1", s.HostnameOverride)
	v1alpha2.SetDefaults(&k)
	_, port, err := net.SplitHostPort(k.HealthzBindAddress)
	require.NoError(t, err)
	for path, probe := range map[string]*corev1.Probe{"/healthz": proxy.ReadinessProbe, "/livez": proxy.LivenessProbe} {
		assert.Equal(t, path+" "+port, probe.HTTPGet.Path+" "+probe.HTTPGet.Port.String())
	}
}

// The manifest behind a brain has no unknown fields. It grants nothing, not even a token; the rest is that of
// mode nftables.
func TestTheManifestBehindABrain(t *testing.T) {
	needModesOfLinux(t)
	data, err := os.ReadFile("../cmd/kube-proxy/deploy/brain/manifest.yaml")
	require.NoError(t, err)
	var m manifest
	parts := []any{&m.account, &m.config, &m.daemons}
	documents := strings.Split(string(data), "\n---\n")
	require.Len(t, documents, len(parts))
	for i, part := range parts {
		require.NoError(t, yaml.UnmarshalStrict([]byte(documents[i]), part))
	}
	assert.Equal(t, readManifest(t).config.Data, m.config.Data)
	pod, usual := &m.daemons.Spec.Template.Spec, readManifest(t).daemons.Spec.Template.Spec
	assert.Equal(t, []string{m.account.Name, m.config.Name}, []string{pod.ServiceAccountName,
		pod.Volumes[0].ConfigMap.Name})
	assert.False(t, *pod.AutomountServiceAccountToken || *m.account.AutomountServiceAccountToken)
	assert.Equal(t, usual.InitContainers, pod.InitContainers)
	c := pod.Containers[0]
	assert.Equal(t, usual.Containers[0].SecurityContext, c.SecurityContext)
	file := writeFile(t, m.config.Data["config.yaml"])
	var args []string
	dir := t.TempDir()
	testkit.NewAuthority(t, dir).Client(t, "tls", "system:node:n1")
	for _, arg := range c.Args {
		arg = strings.ReplaceAll(arg, "/var/lib/kube-proxy/config.yaml", file)
		args = append(args, strings.ReplaceAll(arg, "=/tls/", "="+dir+"/"))
	}
	s, warnings, err := fromArgs(t, args...)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.NotEmpty(t, s.Brain.Targets)
	mounts := map[string]string{}
	for _, v := range pod.Volumes {
		mounts[v.Name] = ""
	}
	for _, mount := range c.VolumeMounts {
		assert.Contains(t, mounts, mount.Name)
		mounts[mount.Name] = mount.MountPath
	}
	for _, arg := range c.Args[3:] {
		_, path, _ := strings.Cut(arg, "=")
		volume := "tls"
		if strings.HasPrefix(arg, "--server-state-file=") {
			volume = "state"
		}
		assert.Equal(t, mounts[volume], filepath.Dir(path), arg)
	}
}

// readManifest reads the manifest of mode nftables, and fails the test for a field that is unknown or a kind that is
// missing or duplicate.
func readManifest(t *testing.T) *manifest {
	data, err := os.ReadFile("../cmd/kube-proxy/deploy/nftables/manifest.yaml")
	require.NoError(t, err)
	var m manifest
	kinds := map[string]any{
		"ClusterRole": &m.role, "ClusterRoleBinding": &m.binding, "ServiceAccount": &m.account, "ConfigMap": &m.config,
		"DaemonSet": &m.daemons,
	}
	for r := yamlreader.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data))); ; {
		doc := make([]byte, 1<<20)
		n, err := r.Read(doc)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		var meta metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal(doc[:n], &meta))
		require.Contains(t, kinds, meta.Kind)
		require.NoError(t, yaml.UnmarshalStrict(doc[:n], kinds[meta.Kind]), meta.Kind)
		delete(kinds, meta.Kind)
	}
	require.Empty(t, kinds)
	return &m
}

func TestTheManifestFitsTogether(t *testing.T) {
	needModesOfLinux(t)
	m := readManifest(t)
	assert.Equal(t, m.role.Name, m.binding.RoleRef.Name)
	assert.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: m.account.Name, Namespace: m.account.Namespace}},
		m.binding.Subjects)
	pod := m.daemons.Spec.Template
	assert.Equal(t, m.account.Name, pod.Spec.ServiceAccountName)
	assert.Equal(t, m.daemons.Spec.Selector.MatchLabels, pod.Labels)
	assert.True(t, pod.Spec.HostNetwork)
	assert.Equal(t, m.config.Name, pod.Spec.Volumes[0].ConfigMap.Name)

	_, warnings, err := config.Load([]byte(m.config.Data["config.yaml"]))
	require.NoError(t, err)
	assert.Empty(t, warnings)

	path := writeFile(t, m.config.Data["config.yaml"])
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		assert.Equal(t, "/var/lib/kube-proxy", c.VolumeMounts[0].MountPath)
		var args []string
		for _, arg := range c.Args {
			args = append(args, strings.ReplaceAll(arg, "/var/lib/kube-proxy/config.yaml", path))
		}
		_, warnings, err := fromArgs(t, args...)
		require.NoError(t, err, c.Name)
		assert.Empty(t, warnings, c.Name)
	}
}

// TestTheContainerHasTheCapabilitiesThatItNeeds: iptables-legacy needs more than NET_ADMIN, even to see that it has no
// rules.
func TestTheContainerHasTheCapabilitiesThatItNeeds(t *testing.T) {
	pod := readManifest(t).daemons.Spec.Template.Spec
	c := pod.Containers[0]
	assert.ElementsMatch(t, []corev1.Capability{"NET_ADMIN", "NET_RAW"}, c.SecurityContext.Capabilities.Add)
	assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	const lock = "/run/xtables.lock"
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.MountPath] = m.Name
		assert.False(t, m.MountPath == lock && m.ReadOnly)
	}
	for _, v := range pod.Volumes {
		if v.Name == mounted[lock] {
			assert.Equal(t, lock, v.HostPath.Path)
			assert.Equal(t, corev1.HostPathFileOrCreate, *v.HostPath.Type)
			return
		}
	}
	t.Error("the lock of iptables-legacy is not the host's")
}

// TestTheClusterRoleGrantsExactlyTheRequestedRights: one permission less, and the program does not work; one more is
// one too many.
func TestTheClusterRoleGrantsExactlyTheRequestedRights(t *testing.T) {
	granted := sets.New[string]()
	for _, rule := range readManifest(t).role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted.Insert(verb + " " + resource + "." + group)
				}
			}
		}
	}

	r := newRig(t, cluster()...)
	patched := make(chan struct{}, 1)
	r.client.PrependReactor("patch", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		patched <- struct{}{}
		return false, nil, nil
	})
	var watching []<-chan struct{}
	for _, resource := range []string{"services", "nodes", "endpointslices", "servicecidrs"} {
		watching = append(watching, r.watches(resource))
	}
	stop := r.start(t, arguments...)
	r.waitServed(t)
	for _, w := range watching {
		<-w
	}
	require.NoError(t, stop())

	// An event that comes again is patched.
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	events, err := newEvents(ctx, r.client, "n1")
	require.NoError(t, err)
	defer events.close()
	events.started()
	events.started()
	<-patched

	asked := sets.New[string]()
	for _, action := range r.client.Actions() {
		asked.Insert(action.GetVerb() + " " + action.GetResource().Resource + "." + action.GetResource().Group)
	}
	assert.Equal(t, sets.List(granted), sets.List(asked))
}
