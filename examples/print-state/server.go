package main

import (
	"errors"
	"flag"

	"sigs.k8s.io/kube-proxy-lib/internal/brainflags"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// serverFlags are the flags that name a brain, and the state of it that is already known.
type serverFlags struct {
	brainflags.Flags
	instance string
	revision uint64
}

// register adds the flags to a set.
func (f *serverFlags) register(set *flag.FlagSet) {
	f.Register(set)
	set.StringVar(&f.instance, "instance-id", "", "to resume: `id` of the server instance that --rev is from")
	set.Uint64Var(&f.revision, "rev", 0, "to resume: `revision` after which changes are wanted")
}

// options returns the options for a node that follow from the flags.
func (f *serverFlags) options(state localstate.Options) (remote.Options, error) {
	opts, err := f.Options()
	if err != nil {
		return opts, err
	}
	opts.State = state
	if (f.instance == "") != (f.revision == 0) {
		return opts, errors.New("--instance-id and --rev go together")
	}
	if f.instance != "" {
		opts.Resume = &remote.Resume{InstanceID: f.instance, Revision: f.revision}
	}
	return opts, nil
}
