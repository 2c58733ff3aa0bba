package remote

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	cert := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	a.cert = cert.Leaf
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template.SerialNumber = big.NewInt(1)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer, a.key = template, key, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) server(t testing.TB) *tls.Config {
	cert := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "brain"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: a.pool}
}

func (a *authority) client(t testing.TB, commonName string) *tls.Config {
	cert := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: commonName},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: a.pool}
}

// serveTCP starts a server on loopback.
func serveTCP(t testing.TB, opts ServerOptions, who ServeOptions) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(quiet(t))
	server, err := NewServer(ctx, opts)
	require.NoError(t, err)
	ln, err := Listen(ctx, "127.0.0.1:0", 0)
	require.NoError(t, err)
	r := serveOn(t, ctx, cancel, server, ln, ln.Addr().String(), who)
	require.Eventually(t, r.Synced, patience, time.Millisecond)
	return r
}

// With TLS the certificate says which node a client is, whatever the message says.
func TestTheNodesNameComesFromTheCertificate(t *testing.T) {
	ca := newAuthority(t)
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serveTCP(t, ServerOptions{Source: c}, ServeOptions{TLS: ca.server(t)})
	rec := &sink.Recorder{}
	follow(t, Options{Targets: []string{server.target}, TLS: ca.client(t, "system:node:n2"), Sink: rec})
	awaitState(t, c, localstate.Options{NodeName: "n2"}, rec)

	refused := func(config *tls.Config, node string) string {
		client, err := NewFeed(Options{Targets: []string{server.target}, TLS: config, Insecure: config == nil,
			Sink:  &sink.Recorder{},
			State: localstate.Options{NodeName: node}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(quiet(t), patience)
		defer cancel()
		err = (&dialer{client: client, handler: noHandler{}, answer: patience}).stream(ctx, server.target)
		require.Error(t, err)
		return err.Error()
	}
	assert.Contains(t, refused(ca.client(t, "system:node:n2"), "n1"), `the certificate is for node "n2", not "n1"`)
	assert.Contains(t, refused(ca.client(t, "alice"), "n1"),
		`the certificate is for "alice", which is not system:node:NAME`)
	stranger := newAuthority(t).client(t, "system:node:n1")
	stranger.RootCAs = ca.pool
	refused(stranger, "n1")
	refused(&tls.Config{RootCAs: ca.pool}, "n1")
	refused(nil, "n1")
}

// noHandler is told by a feed that never gets anything.
type noHandler struct{}

func (noHandler) Update(change func()) { change() }
func (noHandler) Synced()              {}

func TestAProgramsOwnFunctionMaySayWhichNodeItIs(t *testing.T) {
	c := newCluster(baseObjects()...)
	server := serveTCP(t, ServerOptions{Source: c},
		ServeOptions{Insecure: true, Node: func(ctx context.Context, claimed string) (string, error) {
			p, ok := peer.FromContext(ctx)
			assert.True(t, ok)
			assert.Equal(t, "n1", claimed)
			assert.True(t, strings.HasPrefix(p.Addr.String(), "127.0.0.1:"))
			return "n3", nil
		}})
	rec := &sink.Recorder{}
	follow(t, Options{Targets: []string{server.target}, Insecure: true, Sink: rec, State: stateN1})
	awaitState(t, c, localstate.Options{NodeName: "n3"}, rec)
}

func TestNobodyIsLetInByOversight(t *testing.T) {
	ca := newAuthority(t)
	server, err := NewServer(t.Context(), ServerOptions{Source: newCluster()})
	require.NoError(t, err)
	for want, opts := range map[string]ServeOptions{
		"neither TLS nor Insecure":      {},
		"both TLS and Insecure":         {TLS: ca.server(t), Insecure: true},
		"TLS without ClientCAs":         {TLS: &tls.Config{}},
		"no Node function says which":   {Insecure: true},
		"neither TLS nor Insecure\x00u": {Node: ClaimedNode},
	} {
		ln, err := Listen(t.Context(), "127.0.0.1:0", 0)
		require.NoError(t, err)
		assert.ErrorContains(t, server.Serve(t.Context(), ln, opts), strings.TrimSuffix(want, "\x00u"))
	}
	ln, err := Listen(t.Context(), socket(t), 0)
	require.NoError(t, err)
	assert.ErrorContains(t, server.Serve(t.Context(), ln, ServeOptions{TLS: ca.server(t)}), "TLS on a Unix socket")
}

func TestASocketIsForThoseWhomItsModeLets(t *testing.T) {
	target := socket(t)
	path := strings.TrimPrefix(target, "unix://")
	ln, err := Listen(t.Context(), target, 0o660)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o660), info.Mode().Perm())
	_, err = Listen(t.Context(), target, 0)
	assert.ErrorContains(t, err, "a server listens there already")
	require.NoError(t, ln.Close())
	_, err = os.Stat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)

	left, err := net.Listen("unix", path) // what a process that was killed leaves
	require.NoError(t, err)
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, left.Close())
	ln, err = Listen(t.Context(), target, 0)
	require.NoError(t, err)
	info, err = os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, ln.Close())
}

func TestWrongOptionsAreRefused(t *testing.T) {
	err := Run(t.Context(), Options{Targets: []string{"brain.default.svc:1", "unix://x", "10.0.0.1"}, MaxBackoff: -1,
		State: localstate.Options{EndpointDetails: true}})
	for _, want := range []string{`target "brain.default.svc:1" is not ADDRESS:PORT`, "has to be absolute",
		"missing port",
		"neither TLS nor Insecure", "options of the server", "MaxBackoff -1ns is negative"} {
		assert.ErrorContains(t, err, want)
	}
	assert.ErrorContains(t, Run(t.Context(), Options{}), "no targets")
	assert.ErrorContains(t, Run(t.Context(), Options{Targets: []string{"unix:///x"}}), "no sink")
	_, err = NewServer(t.Context(), ServerOptions{State: stateN1, MaxClients: -1, MaxWait: -1})
	for _, want := range []string{"no source", "options of clients", "MaxClients -1 is negative",
		"a negative Heartbeat or MaxWait"} {
		assert.ErrorContains(t, err, want)
	}
}
