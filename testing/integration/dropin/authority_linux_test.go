package dropin_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// The API server gets a certificate of another authority, and the file that the kubeconfig names has that authority.
// client-go reads it again, since 0.36.
func TestTheAuthorityOfTheAPIServerIsRenewedWithoutARestart(t *testing.T) {
	need.Deep(t) // it takes five minutes: client-go reads the file no oftener
	t.Parallel()
	l := newLab(t, cluster.Options{})
	kubeconfig := l.AdminKubeconfig(l.relay.Port)
	config, err := clientcmd.LoadFromFile(kubeconfig)
	require.NoError(t, err)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	for _, c := range config.Clusters {
		require.NoError(t, os.WriteFile(ca, c.CertificateAuthorityData, 0o600))
		c.CertificateAuthority, c.CertificateAuthorityData = ca, nil
	}
	require.NoError(t, clientcmd.WriteToFile(*config, kubeconfig))
	p := l.start(l.flags("nftables", kubeconfig)...)
	a := endpoint{l.newPod("a"), nodeName}
	serve := func(name string) {
		ips := l.service(name)
		l.setEndpoints(name, a)
		for i := range families {
			await(t, name+" works", l.client, net.JoinHostPort(ips[i], "80"),
				func(r reply, err error) bool { return err == nil && r.pod == "a" })
		}
	}
	serve("before")

	renewed := l.RenewCA()
	p.awaitLog("that it does not trust the API server",
		func(log string) bool { return strings.Contains(log, "certificate signed by unknown authority") })
	require.NoError(t, os.WriteFile(ca, renewed, 0o600))
	serve("after")
	p.terminate()
}
