// Package brainflags has the flags by which programs choose a brain, which provides the node-local state.
package brainflags

import (
	"flag"
	"fmt"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/certificates"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// Flags say where brains are, and how to connect to them.
type Flags struct {
	targets                   string
	certFile, keyFile, caFile string
	insecure                  bool
}

// Register adds the flags to a set.
func (f *Flags) Register(set *flag.FlagSet) {
	set.StringVar(&f.targets, "server", "",
		"get the state from a brain: comma-separated `targets`, each unix:///PATH or ADDRESS:PORT")
	set.StringVar(&f.certFile, "tls-cert-file", "",
		"`path` of the client certificate for --server ADDRESS:PORT; reloaded when it changes")
	set.StringVar(&f.keyFile, "tls-private-key-file", "", "`path` of the private key")
	set.StringVar(&f.caFile, "ca-file", "", "`path` of the CA certificates to verify the server")
	set.BoolVar(&f.insecure, "insecure", false, "connect to --server ADDRESS:PORT without TLS")
}

// Given reports whether the flags name a brain.
func (f *Flags) Given() bool { return f.targets != "" }

// Check returns an error if flags for the connection to a brain are given, but no brain.
func (f *Flags) Check() error {
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"tls-cert-file", f.certFile != ""}, {"tls-private-key-file", f.keyFile != ""}, {"ca-file", f.caFile != ""},
		{"insecure", f.insecure},
	} {
		if flag.set && !f.Given() {
			return fmt.Errorf("--%s needs --server", flag.name)
		}
	}
	return nil
}

// Options returns the options that follow from the flags. The caller adds State.
func (f *Flags) Options() (remote.Options, error) {
	opts := remote.Options{Insecure: f.insecure}
	for target := range strings.SplitSeq(f.targets, ",") {
		opts.Targets = append(opts.Targets, strings.TrimSpace(target))
	}
	if f.certFile != "" || f.keyFile != "" || f.caFile != "" {
		config, err := certificates.Config(f.certFile, f.keyFile, f.caFile)
		if err != nil {
			return opts, fmt.Errorf("--tls-cert-file, --tls-private-key-file and --ca-file: %w", err)
		}
		opts.TLS = config
	}
	if _, err := remote.NewFeed(opts); err != nil { // it does not do anything before it runs
		return opts, fmt.Errorf("--server: %w", err)
	}
	return opts, nil
}
