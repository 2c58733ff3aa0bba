package main

import (
	"errors"
	"flag"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-proxy-lib/internal/program/brainflags"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// brainFlags are the flags that name a brain and a state of it that the caller already knows.
type brainFlags struct {
	brainflags.Flags
	instance string
	revision uint64
}

// add adds the flags. Help shows only --brain, "options" the others.
func (f *brainFlags) add(cmd *cobra.Command) {
	f.Name = "brain" // --server is kubectl's
	set := flag.NewFlagSet("", flag.ContinueOnError)
	f.Register(set)
	set.StringVar(&f.instance, "instance-id", "", "to resume: `id` of the server instance that --rev is from")
	set.Uint64Var(&f.revision, "rev", 0, "to resume: `revision` after which changes are wanted")
	cmd.Flags().AddGoFlagSet(set)
	set.VisitAll(func(f *flag.Flag) {
		added := cmd.Flags().Lookup(f.Name)
		added.Hidden = f.Name != "brain"
		if !added.Hidden {
			added.Usage = "ask one of these `brains` instead of a cluster: ADDRESS:PORT or unix:///PATH, with commas"
		}
	})
}

// options converts the flags to the options for a node.
func (f *brainFlags) options(state localstate.Options) (remote.Options, error) {
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
