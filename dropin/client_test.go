package dropin

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
)

func kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(`apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: c, context: {cluster: a, user: u}}]
current-context: c
`), 0o600))
	return path
}

func TestWhichAPIServer(t *testing.T) {
	file := kubeconfig(t)
	for name, tc := range map[string]struct{ kubeconfig, master, host, token string }{
		"that of the kubeconfig file":         {file, "", "https://192.0.2.1:6443", "secret"},
		"that of the flag, if there are both": {file, "https://192.0.2.2:1", "https://192.0.2.2:1", "secret"},
		"that of the flag alone":              {"", "http://192.0.2.2:1", "http://192.0.2.2:1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			rc, err := restConfig(componentbasev1alpha1.ClientConnectionConfiguration{Kubeconfig: tc.kubeconfig,
				ContentType: protobuf, QPS: 7, Burst: 9}, tc.master)
			require.NoError(t, err)
			assert.Equal(t, tc.host, rc.Host)
			assert.Equal(t, tc.token, rc.BearerToken)
			assert.EqualValues(t, 7, rc.QPS)
			assert.Equal(t, 9, rc.Burst)
			assert.Equal(t, protobuf, rc.ContentType)
			assert.Equal(t, protobuf+",application/json", rc.AcceptContentTypes)
		})
	}
}

func TestTheAddressOfTheAPIServerIsKnown(t *testing.T) {
	for host, want := range map[string]string{
		"https://192.0.2.1:6443":    "[192.0.2.1]",
		"https://[2001:db8::1]":     "[2001:db8::1]",
		"http://192.0.2.1/prefix":   "[192.0.2.1]",
		"https://api.example:6443":  "[]",
		"https://192.0.2.1:6443/k8": "[192.0.2.1]",
	} {
		client, err := newClient(componentbasev1alpha1.ClientConnectionConfiguration{}, host, prom.NewRequests(),
			newReached())
		require.NoError(t, err)
		assert.Equal(t, want, fmt.Sprint(apiServers(client)), host)
	}
	assert.Empty(t, apiServers(fake.NewClientset()))
}

// By a name the client reaches whatever address it resolves to, which counts from the attempt to connect on: where the
// address is the node's own by mistake, the next attempt succeeds.
func TestTheAddressesBehindANameAreKnownOnceTried(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close()) // nobody answers
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	reached := newReached()
	client, err := newClient(componentbasev1alpha1.ClientConnectionConfiguration{}, "http://localhost:"+port,
		prom.NewRequests(), reached)
	require.NoError(t, err)
	require.Empty(t, reached.addresses())
	_, err = client.Discovery().ServerVersion()
	require.Error(t, err)
	require.Contains(t, reached.addresses(), netip.MustParseAddr("127.0.0.1"))
	<-reached.changed
}

func TestOnlyTheLastAddressesAreRemembered(t *testing.T) {
	r := newReached()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	for i := range maxReached + 1 {
		r.add(at(i))
		r.add(at(1))
	}
	require.Len(t, r.addresses(), maxReached)
	require.Contains(t, r.addresses(), at(1), "it was used again and again")
	require.NotContains(t, r.addresses(), at(0))
	require.Contains(t, r.addresses(), at(maxReached))
	<-r.changed
	r.add(at(maxReached))
	require.Empty(t, r.changed, "it is known")
	require.Len(t, r.addresses(), maxReached)
}

func TestContentTypesThatAreConfiguredStay(t *testing.T) {
	for _, c := range []componentbasev1alpha1.ClientConnectionConfiguration{
		{ContentType: protobuf, AcceptContentTypes: "text/a"},
		{ContentType: "application/json"},
	} {
		rc, err := restConfig(c, "http://192.0.2.2:1")
		require.NoError(t, err)
		assert.Equal(t, c.ContentType, rc.ContentType)
		assert.Equal(t, c.AcceptContentTypes, rc.AcceptContentTypes)
	}
}

func TestNoAPIServerIsAnError(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := newClient(componentbasev1alpha1.ClientConnectionConfiguration{}, "", prom.NewRequests(), newReached())
	assert.ErrorContains(t, err, "neither kubeconfig nor master is set, and this program does not run in a pod")
	_, err = newClient(componentbasev1alpha1.ClientConnectionConfiguration{Kubeconfig: "/nowhere/kubeconfig"}, "",
		prom.NewRequests(), newReached())
	assert.ErrorContains(t, err, `kubeconfig "/nowhere/kubeconfig"`)
}
