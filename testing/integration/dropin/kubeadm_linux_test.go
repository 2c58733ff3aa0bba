package dropin_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// ofKubeadm are objects that stand in for those which kubeadm makes.
func ofKubeadm() (*corev1.ConfigMap, *appsv1.DaemonSet) {
	labels := map[string]string{"k8s-app": "kube-proxy"}
	meta := metav1.ObjectMeta{Name: "kube-proxy", Namespace: metav1.NamespaceSystem, Labels: labels}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"config.conf": "of kubeadm"}},
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				HostNetwork:  true,
				NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
				Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: []corev1.Container{{Name: "kube-proxy", Image: "registry.example/kube-proxy:v1.37.2",
					Command: []string{"/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"}}},
			}},
		}}
}

// nodeOf returns the name of the node that a pod of a DaemonSet is for.
func nodeOf(p *corev1.Pod) string {
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return terms[0].MatchFields[0].Values[0]
}

// runPods stands in for the scheduler, and for kubelets, as far as the DaemonSet controller needs them: pods get their
// nodes, and deleted ones go.
func (l *lab) runPods() {
	pods := l.Client.CoreV1().Pods(metav1.NamespaceSystem)
	ctx, cancel := context.WithCancel(l.t.Context())
	w, err := pods.Watch(ctx, metav1.ListOptions{})
	require.NoError(l.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			p, ok := event.Object.(*corev1.Pod)
			var err error
			switch {
			case !ok || event.Type == apiwatch.Deleted:
			case p.DeletionTimestamp != nil:
				err = pods.Delete(ctx, p.Name, *metav1.NewDeleteOptions(0))
			case p.Spec.NodeName == "":
				err = pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name},
					Target: corev1.ObjectReference{Kind: "Node", Name: nodeOf(p)}}, metav1.CreateOptions{})
			}
			if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				assert.NoError(l.t, err)
			}
		}
	}()
	l.t.Cleanup(func() {
		cancel()
		w.Stop()
		<-done
	})
}

// awaitPods waits until the DaemonSets' pods are for these nodes: by the label k8s-app, the names of their nodes.
func (l *lab) awaitPods(want map[string][]string) {
	l.t.Helper()
	w, err := l.Client.CoreV1().Pods(metav1.NamespaceSystem).Watch(l.t.Context(), metav1.ListOptions{})
	require.NoError(l.t, err)
	defer w.Stop()
	deadline := time.After(waitTimeout)
	for {
		list, err := l.Client.CoreV1().Pods(metav1.NamespaceSystem).List(l.t.Context(), metav1.ListOptions{})
		require.NoError(l.t, err)
		got := map[string][]string{}
		for _, p := range list.Items {
			got[p.Labels["k8s-app"]] = append(got[p.Labels["k8s-app"]], nodeOf(&p))
		}
		same := len(got) == len(want)
		for app, nodes := range got {
			slices.Sort(nodes)
			same = same && slices.Equal(nodes, want[app])
		}
		if same {
			return
		}
		select {
		case <-w.ResultChan():
		case <-deadline:
			l.t.Fatalf("the pods are for %v, want %v", got, want)
		}
	}
}

// label sets the label that chooses the proxy of a node, or removes it.
func (l *lab) label(node, value string) {
	l.t.Helper()
	patch := `{"metadata": {"labels": {"service-proxy": null}}}`
	if value != "" {
		patch = `{"metadata": {"labels": {"service-proxy": "` + value + `"}}}`
	}
	_, err := l.Client.CoreV1().Nodes().Patch(l.t.Context(), node, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{})
	require.NoError(l.t, err)
}

// TestTheStepsForKubeadm takes the steps 3 to 7 of docs/kubeadm.md: what its commands do to the objects of the
// cluster, the DaemonSet controller's answer to that, and the program's --cleanup on a node.
func TestTheStepsForKubeadm(t *testing.T) {
	t.Parallel()
	l := newLab(t, cluster.Options{ControllerManager: true})
	recipe, err := os.ReadFile("../../../docs/kubeadm.md")
	require.NoError(t, err)
	linux := func(name string) *corev1.Node {
		n := kube.Node(name).Build()
		n.Labels = map[string]string{corev1.LabelOSStable: "linux"}
		return n
	}
	_, err = l.Client.CoreV1().Nodes().Patch(t.Context(), nodeName, types.StrategicMergePatchType,
		[]byte(`{"metadata": {"labels": {"kubernetes.io/os": "linux"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	create(l, linux(otherNode))
	config, daemons := ofKubeadm()
	l.awaitNamespace(metav1.NamespaceSystem)
	l.runPods()
	_, err = l.Client.CoreV1().ConfigMaps(config.Namespace).Create(t.Context(), config, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = l.Client.AppsV1().DaemonSets(daemons.Namespace).Create(t.Context(), daemons, metav1.CreateOptions{})
	require.NoError(t, err)
	both := []string{nodeName, otherNode}
	l.awaitPods(map[string][]string{"kube-proxy": both})

	// 3. Applying the manifest changes nothing.
	m := readManifest(t)
	token := m.apply(l)
	_, err = l.Client.AppsV1().DaemonSets(m.daemonSet.Namespace).Create(t.Context(), m.daemonSet, metav1.CreateOptions{})
	require.NoError(t, err)
	// 4. Nor does the patch, as long as no node has the label.
	patch := regexp.MustCompile(`(?s)--patch '(.*?)'`).FindSubmatch(recipe)
	require.NotNil(t, patch)
	_, err = l.Client.AppsV1().DaemonSets(daemons.Namespace).Patch(t.Context(), daemons.Name,
		types.StrategicMergePatchType, patch[1], metav1.PatchOptions{})
	require.NoError(t, err)
	l.awaitPods(map[string][]string{"kube-proxy": both})
	got, err := l.Client.CoreV1().ConfigMaps(config.Namespace).Get(t.Context(), config.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "of kubeadm", got.Data["config.conf"])

	// 5. and 6. The label exchanges the proxies, on one node and on all.
	l.label(nodeName, "kube-proxy-lib")
	l.awaitPods(map[string][]string{"kube-proxy": {otherNode}, "kube-proxy-lib": {nodeName}})
	b := newBusy(l)
	l.setEndpoints("busy", endpoint{l.newPod("a"), nodeName})
	p := m.startAs(l, token)
	b.awaitAnswers()
	l.label(otherNode, "kube-proxy-lib")
	l.awaitPods(map[string][]string{"kube-proxy-lib": both})

	// 7. Without the label kube-proxy comes back, and the Job removes what the program has left.
	l.label(nodeName, "")
	l.awaitPods(map[string][]string{"kube-proxy": {nodeName}, "kube-proxy-lib": {otherNode}})
	p.terminate()
	assert.Contains(t, l.rules(), "kube-proxy-lib")
	text, err := os.ReadFile("../../../cmd/kube-proxy/deploy/cleanup.yaml")
	require.NoError(t, err)
	var job batchv1.Job
	manifest := strings.ReplaceAll(string(text), ": NODE\n", ": "+nodeName+"\n")
	require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &job))
	made, err := l.Client.BatchV1().Jobs(job.Namespace).Create(t.Context(), &job,
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	require.NoError(t, err)
	assert.Equal(t, nodeName, made.Spec.Template.Spec.NodeName)
	cleanup := l.run(nil, mustBuild(t), made.Spec.Template.Spec.Containers[0].Args...)
	cleanup.wait()
	require.NoError(t, cleanup.err)
	assert.NotContains(t, l.rules(), "kube-proxy-lib")
}
