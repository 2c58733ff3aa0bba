// Package certificates reads TLS certificates and keys.
package certificates

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Config returns the configuration of a client or server with a certificate, which verifies the other side's. The
// certificate and key may be in one file. They may be renewed, so they are read for each connection. The CA
// certificates may be renewed too, but are read only once: call Config for each connection.
func Config(certFile, keyFile, caFile string) (*tls.Config, error) {
	if certFile == "" || keyFile == "" || caFile == "" {
		return nil, errors.New("must be given together")
	}
	load := func() (*tls.Certificate, error) {
		certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &certificate, err
	}
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	text, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("CA certificates: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA certificates: %s: contains no certificate", caFile)
	}
	return &tls.Config{
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() },
		RootCAs:              authorities,
		ClientCAs:            authorities,
		MinVersion:           tls.VersionTLS12,
	}, nil
}

// Authorities returns what identifies the CA certificates in a file, sorted: the SHA-256 of the public key of each. So
// a CA certificate that is renewed with the same key stays the same.
func Authorities(caFile string) ([]string, error) {
	text, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	var all []string
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if ca, err := x509.ParseCertificate(block.Bytes); err == nil { // as in x509.CertPool
			sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
			all = append(all, hex.EncodeToString(sum[:]))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: contains no certificate", caFile)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
