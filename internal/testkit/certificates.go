package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority signs certificates, and writes them and their keys to files.
type Authority struct {
	Certificate *x509.Certificate
	Pool        *x509.CertPool // of Certificate
	dir         string
	key         *ecdsa.PrivateKey
}

// NewAuthority returns an authority whose own certificate is the file ca.crt in a directory.
func NewAuthority(t testing.TB, dir string) *Authority {
	t.Helper()
	a := &Authority{dir: dir, Pool: x509.NewCertPool()}
	a.sign(t, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.Pool.AddCert(a.Certificate)
	return a
}

// Server creates the files NAME.crt and NAME.key of a server with these addresses.
func (a *Authority) Server(t testing.TB, name string, ips ...net.IP) tls.Certificate {
	t.Helper()
	return a.sign(t, name, &x509.Certificate{
		IPAddresses: ips, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// Client creates the files NAME.crt and NAME.key of a client with a common name.
func (a *Authority) Client(t testing.TB, name, commonName string) tls.Certificate {
	t.Helper()
	return a.ClientUntil(t, name, commonName, time.Now().Add(time.Hour))
}

// ClientUntil is Client with an expiry time.
func (a *Authority) ClientUntil(t testing.TB, name, commonName string, end time.Time) tls.Certificate {
	t.Helper()
	return a.sign(t, name, &x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotAfter: end,
	})
}

// sign creates the files of a certificate. The first one is the authority's own.
func (a *Authority) sign(t testing.TB, name string, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if a.key == nil {
		a.Certificate, a.key = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, key.Public(), a.key)
	require.NoError(t, err)
	if a.Certificate == template {
		a.Certificate, err = x509.ParseCertificate(der)
		require.NoError(t, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, name+".crt"), certificate, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, name+".key"), secret, 0o600))
	pair, err := tls.X509KeyPair(certificate, secret)
	require.NoError(t, err)
	return pair
}
