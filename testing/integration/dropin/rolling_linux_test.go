package dropin_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// kubelet stands in for a kubelet for the pods with the label app=busy: it runs them as namespaces with a server,
// writes their status, and ends deleted ones after their grace period.
type kubelet struct {
	*lab
	work sync.WaitGroup
	stop context.CancelFunc
	ctx  context.Context

	mu   sync.Mutex
	pods map[string]*pod // by name; those that run
	seen map[string]bool // their deletion
}

func startKubelet(l *lab) *kubelet {
	k := &kubelet{lab: l, pods: map[string]*pod{}, seen: map[string]bool{}}
	k.ctx, k.stop = context.WithCancel(l.t.Context())
	w, err := l.Client.CoreV1().Pods(namespace).Watch(k.ctx, metav1.ListOptions{LabelSelector: "app=busy"})
	require.NoError(l.t, err)
	k.work.Go(func() {
		for event := range w.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type != apiwatch.Deleted {
				k.sync(p)
			}
		}
	})
	l.t.Cleanup(func() {
		k.stop()
		w.Stop()
		k.work.Wait()
	})
	return k
}

// sync handles a new or changed pod.
func (k *kubelet) sync(p *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	running := k.pods[p.Name]
	switch {
	case p.DeletionTimestamp == nil && running == nil:
		running = k.newPod(p.Name)
		k.pods[p.Name] = running
		k.work.Go(func() { k.ready(p, running) })
	case p.DeletionTimestamp != nil && running != nil && !k.seen[p.Name]:
		k.seen[p.Name] = true
		grace := time.Duration(*p.DeletionGracePeriodSeconds) * time.Second
		k.work.Go(func() { k.terminate(p.Name, running, grace) })
	}
}

// ready writes the status of a ready pod.
func (k *kubelet) ready(p *corev1.Pod, running *pod) {
	p = p.DeepCopy()
	now := metav1.Now()
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, HostIP: nodeIPs[0], PodIP: running.ips[0]}
	for i := range families {
		p.Status.HostIPs = append(p.Status.HostIPs, corev1.HostIP{IP: nodeIPs[i]})
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: running.ips[i]})
	}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady,
		corev1.PodReady} {
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	if _, err := k.Client.CoreV1().Pods(namespace).UpdateStatus(k.ctx, p, metav1.UpdateOptions{}); err != nil &&
		k.ctx.Err() == nil && !apierrors.IsConflict(err) {
		assert.NoError(k.t, err, "status of %s", p.Name)
	}
}

// terminate ends a pod as a kubelet does whose process finishes its work after SIGTERM: when no client has connected
// for 5 s, and at the end of its grace period at the latest.
func (k *kubelet) terminate(name string, running *pod, grace time.Duration) {
	killed := time.Now().Add(grace)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	served, lastCame := running.served.Load(), time.Now()
	for now := lastCame; now.Before(killed) && now.Sub(lastCame) < 5*time.Second; {
		select {
		case now = <-look.C:
		case <-k.ctx.Done():
			return
		}
		if n := running.served.Load(); n != served {
			served, lastCame = n, now
		}
	}
	running.stop()
	err := k.Client.CoreV1().Pods(namespace).Delete(k.ctx, name,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if k.ctx.Err() == nil && !apierrors.IsNotFound(err) {
		assert.NoError(k.t, err, "the end of %s", name)
	}
}

// rollOut gives the Deployment "busy" a new version, and waits until it has no other pods.
func (k *kubelet) rollOut(version string, grace int64) {
	k.t.Helper()
	all := k.Client.AppsV1().Deployments(namespace)
	labels := map[string]string{"app": "busy"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "busy"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](3),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
				}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"version": version}},
				Spec: corev1.PodSpec{
					NodeName: nodeName, TerminationGracePeriodSeconds: &grace,
					Containers: []corev1.Container{{Name: "server", Image: "server:" + version}},
				},
			},
		},
	}
	_, err := all.Create(k.t.Context(), d, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = all.Update(k.t.Context(), d, metav1.UpdateOptions{})
	}
	require.NoError(k.t, err)
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(
		20 * time.Millisecond) { // a watch would have to check all pods each time, too
		pods, err := k.Client.CoreV1().Pods(namespace).List(k.t.Context(),
			metav1.ListOptions{LabelSelector: "app=busy"})
		require.NoError(k.t, err)
		new, old := 0, 0
		var names []string
		for _, p := range pods.Items {
			names = append(names, fmt.Sprint(p.Name, " ", p.Status.Phase, " ", p.DeletionTimestamp))
			switch {
			case p.Annotations["version"] != version:
				old++
			case p.Status.Phase == corev1.PodRunning:
				new++
			}
		}
		if new == 3 && old == 0 {
			return
		}
		require.True(k.t, time.Now().Before(deadline), "version %s is not rolled out: %s", version,
			strings.Join(names, ", "))
	}
}

// TestRollingUpdatesWithoutOneFailedConnection lets kube-controller-manager roll a Deployment and write the slices.
func TestRollingUpdatesWithoutOneFailedConnection(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, cluster.Options{ControllerManager: true})
			b := newBusy(l, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "busy"} })
			l.start(l.flags(mode, l.AdminKubeconfig(l.relay.Port))...)
			k := startKubelet(l)
			// A pod still serves in its grace period, and at its end the proxies must have stopped using it. This is
			// upstream's default.
			const grace = 30
			k.rollOut("0", grace)
			b.awaitAnswers()
			b.startClients()
			before := b.load.takePods()
			for version := range 3 {
				k.rollOut(fmt.Sprint(version+1), grace)
				b.load.more(20)
			}
			b.load.takePods()
			b.load.more(20)
			for name := range b.load.takePods() {
				assert.NotContains(t, before, name, "a pod of an old version still gets connections")
			}
			b.load.assertNoFailure()
		})
	}
}
