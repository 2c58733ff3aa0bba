package dropin_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// brains are replicas of cmd/brain on the node, with the rights of its manifest, and certificates for themselves
// and the node.
type brains struct {
	*lab
	kubeconfig, certificates string
	running                  [2]*program
}

func newBrains(l *lab) *brains {
	b := &brains{lab: l, certificates: l.t.TempDir()}
	b.kubeconfig = l.Kubeconfig("brain", brainToken(l), l.relay.Port)
	ca := testkit.NewAuthority(l.t, b.certificates)
	ca.Server(l.t, "server", net.IPv4(127, 0, 0, 1))
	ca.Client(l.t, "node", "system:node:"+nodeName)
	return b
}

func (b *brains) file(name string) string { return filepath.Join(b.certificates, name) }

// start starts a replica.
func (b *brains) start(replica int) {
	b.t.Helper()
	b.running[replica] = b.run(nil, mustBuildBrain(b.t), "--kubeconfig="+b.kubeconfig,
		fmt.Sprintf("--listen=127.0.0.1:%d", 10270+replica), "--tls-cert-file="+b.file("server.crt"),
		"--tls-private-key-file="+b.file("server.key"), "--client-ca-file="+b.file("ca.crt"))
}

// startDropIn starts a drop-in without access to an API server.
func (b *brains) startDropIn(mode string) *program {
	return b.lab.start("--proxy-mode="+mode, "--hostname-override="+nodeName,
		"--cluster-cidr="+strings.Join(podCIDRs[:], ","), "--oom-score-adj=0", "--conntrack-max-per-core=0",
		"--server=127.0.0.1:10270,127.0.0.1:10271",
		"--ca-file="+b.file("ca.crt"), "--tls-cert-file="+b.file("node.crt"),
		"--tls-private-key-file="+b.file("node.key"))
}

// brainToken creates the objects of the manifest of cmd/brain, and returns a token of its service account.
// Workloads are sent to the API server as a dry run.
func brainToken(l *lab) (token string) {
	file, err := os.ReadFile("../../../cmd/brain/manifest.yaml")
	require.NoError(l.t, err)
	ctx, opts := l.t.Context(), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	dry := opts
	dry.DryRun = []string{metav1.DryRunAll}
	for documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(file))); ; {
		buf := make([]byte, len(file))
		n, err := documents.Read(buf)
		if errors.Is(err, io.EOF) {
			return token
		}
		require.NoError(l.t, err)
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(buf[:n], nil, nil)
		require.NoError(l.t, err)
		switch o := object.(type) {
		case *corev1.ServiceAccount:
			l.awaitNamespace(o.Namespace)
			accounts := l.Client.CoreV1().ServiceAccounts(o.Namespace)
			_, err = accounts.Create(ctx, o, opts)
			require.NoError(l.t, err)
			var request *authenticationv1.TokenRequest
			request, err = accounts.CreateToken(ctx, o.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			token = request.Status.Token
		case *rbacv1.ClusterRole:
			_, err = l.Client.RbacV1().ClusterRoles().Create(ctx, o, opts)
		case *rbacv1.ClusterRoleBinding:
			_, err = l.Client.RbacV1().ClusterRoleBindings().Create(ctx, o, opts)
		case *policyv1.PodDisruptionBudget:
			_, err = l.Client.PolicyV1().PodDisruptionBudgets(o.Namespace).Create(ctx, o, dry)
		case *appsv1.Deployment:
			_, err = l.Client.AppsV1().Deployments(o.Namespace).Create(ctx, o, dry)
		default:
			err = fmt.Errorf("the manifest has a %T, which this test does not know", o)
		}
		require.NoError(l.t, err)
	}
}

// TestBehindBrainsRollingUpdatesWithoutOneFailedConnection: the drop-in gets everything from two brains over mTLS.
// While a Deployment is rolled one or the other brain is killed, and in the end both. One mode is enough, because modes
// do not depend on brains, and the tests of cmd/kube-proxy run all of them.
func TestBehindBrainsRollingUpdatesWithoutOneFailedConnection(t *testing.T) {
	t.Parallel()
	l := newLab(t, cluster.Options{ControllerManager: true})
	b := newBusy(l, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "busy"} })
	brains := newBrains(l)
	brains.start(0)
	brains.start(1)
	proxy := brains.startDropIn("nftables")
	k := startKubelet(l)
	const grace = 30 // as in TestRollingUpdatesWithoutOneFailedConnection
	k.rollOut("0", grace)
	b.awaitAnswers()
	b.startClients()
	before := b.load.takePods()
	for version := range 2 {
		brains.running[version].kill()
		k.rollOut(fmt.Sprint(version+1), grace)
		b.load.more(20)
		brains.start(version)
	}
	b.load.takePods()
	b.load.more(20)
	for name := range b.load.takePods() {
		assert.NotContains(t, before, name, "a pod of an old version still gets connections")
	}

	// Without a brain everything stays, and a restart of the proxy changes nothing.
	brains.running[0].kill()
	brains.running[1].kill()
	require.Eventually(t, func() bool {
		code, body := l.get("http://127.0.0.1:10256/healthz")
		return code == http.StatusOK && strings.Contains(body, "disconnectedSince")
	}, waitTimeout, 50*time.Millisecond)
	proxy.terminate()
	proxy = brains.startDropIn("nftables")
	b.load.more(20)
	brains.start(1)
	b.awaitApplied()
	b.load.more(20)
	b.load.assertNoFailure()
	assert.NotContains(t, strings.ToLower(proxy.logged()), "api server", "it does not ask one")
}
