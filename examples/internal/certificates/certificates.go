// Package certificates reads the files of TLS.
package certificates

import (
	"crypto/x509"
	"fmt"
	"os"
)

// Pool reads a file of certificates to verify others by.
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
