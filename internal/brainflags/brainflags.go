// Package brainflags has the flags by which programs choose a brain, which provides the node-local state.
package brainflags

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/certificates"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// Flags say where brains are, and how to connect to them.
type Flags struct {
	targets                   string
	certFile, keyFile, caFile string
	insecure                  bool
	stateFile                 string
	stateMaxAge               time.Duration
}

// Register adds the flags to a set.
func (f *Flags) Register(set *flag.FlagSet) {
	set.StringVar(&f.targets, "server", "",
		"get the state from one of these `brains`: ADDRESS:PORT, unix:///PATH, dns:///NAME:PORT or file:///PATH, with commas")
	set.StringVar(&f.certFile, "tls-cert-file", "",
		"`file` of the certificate to show to the brain; it may be renewed at any time")
	set.StringVar(&f.keyFile, "tls-private-key-file", "", "`file` of the private key of this certificate")
	set.StringVar(&f.caFile, "ca-file", "", "`file` of the CA certificates to verify the brain with")
	set.BoolVar(&f.insecure, "insecure", false, "connect to the brain without TLS")
}

// RegisterKeep adds the flag of a proxy that keeps its state.
func (f *Flags) RegisterKeep(set *flag.FlagSet) {
	set.StringVar(&f.stateFile, "server-state-file", "",
		"keep the state in this `file`, to start with it while no brain can be reached")
	set.DurationVar(&f.stateMaxAge, "server-state-max-age", defaultMaxAge,
		"maximum `age` of a state in --server-state-file that is used")
}

const defaultMaxAge = 24 * time.Hour // that of remote.Keep

func (f *Flags) maxAgeGiven() bool { return f.stateMaxAge != 0 && f.stateMaxAge != defaultMaxAge }

// Given reports whether the flags name a brain.
func (f *Flags) Given() bool { return f.targets != "" }

// Check returns an error if flags for the connection to a brain are given, but no brain.
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
	if f.stateFile == "" {
		if f.maxAgeGiven() {
			return opts, errors.New("--server-state-max-age needs --server-state-file")
		}
		return opts, nil
	}
	opts.Keep = &remote.Keep{File: f.stateFile, MaxAge: f.stateMaxAge}
	if f.caFile != "" { // whose servers are trusted tells clusters apart
		authorities, err := os.ReadFile(f.caFile)
		if err != nil {
			return opts, fmt.Errorf("--ca-file: %w", err)
		}
		opts.Keep.Cluster = fmt.Sprintf("%x", sha256.Sum256(authorities))
	}
	return opts, nil
}
