package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/examples/internal/certificates"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// serverFlags are the flags that name a server of package remote to get the state from.
type serverFlags struct {
	targets                   string
	certFile, keyFile, caFile string
	insecure                  bool
	instance                  string
	revision                  uint64
}

// register adds the flags to a set.
func (f *serverFlags) register(set *flag.FlagSet) {
	set.StringVar(&f.targets, "server", "",
		"get the state from a brain: `targets` separated by commas, each unix:///PATH or ADDRESS:PORT")
	set.StringVar(&f.certFile, "tls-cert-file", "", "`path` of the client's certificate, for --server ADDRESS:PORT")
	set.StringVar(&f.keyFile, "tls-private-key-file", "", "`path` of its key")
	set.StringVar(&f.caFile, "ca-file", "", "`path` of the certificates that the server's is verified by")
	set.BoolVar(&f.insecure, "insecure", false, "no TLS to --server ADDRESS:PORT")
	set.StringVar(&f.instance, "instance-id", "", "resume: the `id` of the server instance whose revision --rev is")
	set.Uint64Var(&f.revision, "rev", 0, "resume: the `revision` after which changes are wanted")
}

// given tells whether the flags name a server.
func (f *serverFlags) given() bool { return f.targets != "" }

// options returns what the flags say, for a node.
func (f *serverFlags) options(state localstate.Options) (remote.Options, error) {
	opts := remote.Options{
		Targets: strings.Split(f.targets, ","), Insecure: f.insecure, State: state,
	}
	if (f.instance == "") != (f.revision == 0) {
		return opts, errors.New("--instance-id and --rev go together")
	}
	if f.instance != "" {
		opts.Resume = &remote.Resume{InstanceID: f.instance, Revision: f.revision}
	}
	if f.certFile == "" && f.keyFile == "" && f.caFile == "" {
		return opts, nil
	}
	certificate, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return opts, fmt.Errorf("--tls-cert-file and --tls-private-key-file: %w", err)
	}
	pool, err := certificates.Pool(f.caFile)
	if err != nil {
		return opts, fmt.Errorf("--ca-file: %w", err)
	}
	opts.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: pool, MinVersion: tls.VersionTLS12}
	return opts, nil
}
