// Package certificates reads TLS certificates and keys.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Config returns the configuration of a client or a server that has a certificate, and verifies the other side's. The
// certificate and key may be in one file. They are read for each connection, since they are renewed.
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
