// Package brainflags has the flags that select a brain as the source of the node-local state.
package brainflags

import (
	"cmp"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/program/certificates"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// Flags name brains, and configure the connection to them.
type Flags struct {
	// Name is the name of the flag that names brains; if it is empty, "server".
	Name string

	targets                   string
	certFile, keyFile, caFile string
	insecure                  bool
	stateFile                 string
	stateMaxAge               time.Duration
}

// Register adds the flags to a set.
func (f *Flags) Register(set *flag.FlagSet) {
	set.StringVar(&f.targets, f.name(), "",
		"get the state from one of these `brains`: ADDRESS:PORT, unix:///PATH, dns:///NAME:PORT or file:///PATH, with commas")
	set.StringVar(&f.certFile, "tls-cert-file", "",
		"`file` of the certificate to show to the brain; it may be renewed at any time")
	set.StringVar(&f.keyFile, "tls-private-key-file", "", "`file` of the private key of this certificate")
	set.StringVar(&f.caFile, "ca-file", "",
		"`file` of the CA certificates to verify the brain with; they may be renewed at any time")
	set.BoolVar(&f.insecure, "insecure", false, "connect to the brain without TLS")
}

// RegisterKeep adds the flag for a proxy that keeps its state on disk.
func (f *Flags) RegisterKeep(set *flag.FlagSet) {
	set.StringVar(&f.stateFile, "server-state-file", "",
		"keep the state in this `file`, to start with it while no brain can be reached")
	set.DurationVar(&f.stateMaxAge, "server-state-max-age", defaultMaxAge,
		"maximum `age` of a state in --server-state-file that is used")
}

const defaultMaxAge = 24 * time.Hour // as in remote.Keep

func (f *Flags) maxAgeGiven() bool { return f.stateMaxAge != 0 && f.stateMaxAge != defaultMaxAge }

func (f *Flags) name() string { return cmp.Or(f.Name, "server") }

// Given reports whether the flags name a brain.
func (f *Flags) Given() bool { return f.targets != "" }

// Check returns an error if there are flags for the connection to a brain, but no brain.
func (f *Flags) Check() error {
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"tls-cert-file", f.certFile != ""}, {"tls-private-key-file", f.keyFile != ""}, {"ca-file", f.caFile != ""},
		{"insecure", f.insecure}, {"server-state-file", f.stateFile != ""},
		{"server-state-max-age", f.maxAgeGiven()},
	} {
		if flag.set && !f.Given() {
			return fmt.Errorf("--%s needs --%s", flag.name, f.name())
		}
	}
	return nil
}

// Options returns the options from the flags. The caller adds State.
func (f *Flags) Options() (remote.Options, error) {
	opts := remote.Options{Insecure: f.insecure}
	for target := range strings.SplitSeq(f.targets, ",") {
		opts.Targets = append(opts.Targets, strings.TrimSpace(target))
	}
	if f.certFile != "" || f.keyFile != "" || f.caFile != "" {
		opts.GetTLS = func() (*tls.Config, error) {
			config, err := certificates.Config(f.certFile, f.keyFile, f.caFile)
			if err != nil {
				return nil, fmt.Errorf("--tls-cert-file, --tls-private-key-file and --ca-file: %w", err)
			}
			return config, nil
		}
		if _, err := opts.GetTLS(); err != nil {
			return opts, err
		}
	}
	if _, err := remote.NewFeed(opts); err != nil { // it does nothing until it runs
		return opts, fmt.Errorf("--%s: %w", f.name(), err)
	}
	if f.stateFile == "" {
		if f.maxAgeGiven() {
			return opts, errors.New("--server-state-max-age needs --server-state-file")
		}
		return opts, nil
	}
	opts.Keep = &remote.Keep{File: f.stateFile, MaxAge: f.stateMaxAge}
	if f.caFile != "" { // the CA distinguishes clusters
		opts.Keep.Cluster = func() ([]string, error) { return certificates.Authorities(f.caFile) }
	}
	return opts, nil
}
