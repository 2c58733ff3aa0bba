package nft_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func TestNoNewFlowIsLostWhileAServiceIsResized(t *testing.T) { newLoaded(t).Resized() }

func TestNoNewFlowIsLostWhileTheBackendIsRestarted(t *testing.T) { newLoaded(t).Restarted() }

// newLoaded makes a rig on the kernel in which the service that is to be under load is applied.
func newLoaded(t *testing.T) backendtest.Loaded {
	flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	r := newKernelRig(t, nft.Options{}, true)
	defer r.Sync()
	return backendtest.NewLoaded(flows, r.Driver)
}

func TestNftListsTheRulesetAtEveryMoment(t *testing.T) {
	nftProgram := need.Program(t, "nft")
	testkit.EnterNamespace(t)
	r := newKernelRig(t, nft.Options{}, true)
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	done := make(chan struct{})
	ns, err := netns.Get()
	require.NoError(t, err)
	defer ns.Close()
	go func() {
		defer close(done)
		defer cancel()
		assert.NoError(t, osthread.In(int(ns), func() error {
			for range 20 {
				out, err := exec.CommandContext(t.Context(), nftProgram, "list", "ruleset").CombinedOutput()
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
			return nil
		}))
	}()
	for round := 0; ctx.Err() == nil; round++ {
		if round%2 == 0 {
			r.Delete(fm.Endpoint("shop/sticky:http/TCP", "10.244.2.9:80").Build())
			r.Delete(model.ServiceName{Namespace: "shop", Name: "front"})
		} else {
			r.Set(backendtest.EveryFeature()...)
		}
		r.Sync()
	}
	<-done
}

func TestNftListsWhateverTheNamesAre(t *testing.T) {
	nftProgram := need.Program(t, "nft")
	testkit.EnterNamespace(t)
	r := newKernelRig(t, nft.Options{}, true)
	backendtest.Set(t, r.backend, strange()...)
	require.NoError(t, r.backend.Sync(t.Context()))
	listed, err := exec.CommandContext(t.Context(), nftProgram, "list", "ruleset").CombinedOutput()
	require.NoError(t, err, "%s", listed)
	require.NoError(t, r.backend.Close()) // or it would repair at once
	require.NoError(t, exec.CommandContext(t.Context(), nftProgram, "flush", "ruleset").Run())
	load := exec.CommandContext(t.Context(), nftProgram, "-f", "-")
	load.Stdin = bytes.NewReader(listed)
	out, err := load.CombinedOutput()
	require.NoError(t, err, "what nft lists loads again: %s", out)
}
