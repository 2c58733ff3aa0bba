// Package certificates reads TLS certificates and keys.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Pool reads a file of certificates that others are verified by.
func Pool(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it", path)
	}
	return pool, nil
}

// Client returns the configuration of a client that has a certificate, and verifies the server's. The client's
// certificate and key may be in one file. They are read for each connection, since they are renewed.
func Client(certFile, keyFile, caFile string) (*tls.Config, error) {
	if certFile == "" || keyFile == "" || caFile == "" {
		return nil, errors.New("these have to be given together")
	}
	load := func() (*tls.Certificate, error) {
		certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &certificate, err
	}
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("the client's certificate: %w", err)
	}
	pool, err := Pool(caFile)
	if err != nil {
		return nil, fmt.Errorf("the authority: %w", err)
	}
	return &tls.Config{
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() },
		RootCAs:              pool,
		MinVersion:           tls.VersionTLS12,
	}, nil
}
