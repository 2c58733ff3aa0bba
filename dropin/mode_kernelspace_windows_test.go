package dropin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows/svc"
)

// The whole program on Windows, with a model of HNS and a cluster without an API server.
func TestModeKernelspaceServes(t *testing.T) {
	r := newRig(t, cluster()...)
	fake := r.hns
	empty := fake.Dump()
	r.machine.flows = noFlows{}
	stop := r.start(t, "--network-name=cbr0", "--cluster-cidr=10.244.0.0/16")
	require.Eventually(t,
		func() bool { return strings.Contains(fake.Dump(), "load balancer 10.96.0.10:80/TCP -> 8080") },
		10*time.Second, time.Millisecond)
	require.NoError(t, stop())
	assert.Contains(t, fake.Dump(), "load balancer 10.96.0.10:80/TCP", "the rules stay")

	require.NoError(t, r.run("--cleanup", "--network-name=cbr0"))
	assert.Equal(t, empty, fake.Dump())
	assert.ErrorContains(t, r.run("--proxy-mode=iptables"), "kernelspace")
	assert.ErrorContains(t, r.run("--proxy-mode=kernelspace"), "KUBE_NETWORK")
}

func TestTheProgramRunsAsAServiceIfItIsAskedTo(t *testing.T) {
	r := newRig(t, cluster()...)
	r.machine.flows = noFlows{}
	called := errors.New("called")
	r.machine.asService = func(context.Context, func(context.Context) error) error { return called }
	assert.ErrorIs(t, r.run("--windows-service", "--network-name=cbr0"), called)
}

func TestTheServiceEndsWhenItIsAskedTo(t *testing.T) {
	for _, cmd := range []svc.Cmd{svc.Stop, svc.Shutdown} {
		s := &service{ctx: t.Context(), run: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		requests, status := make(chan svc.ChangeRequest, 2), make(chan svc.Status, 4)
		running := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
		requests <- svc.ChangeRequest{Cmd: svc.Interrogate, CurrentStatus: running}
		requests <- svc.ChangeRequest{Cmd: cmd}
		_, code := s.Execute(nil, requests, status)
		assert.Zero(t, code)
		assert.NoError(t, s.err)
		assert.Equal(t, running, <-status)
		assert.Equal(t, running, <-status)
		assert.Equal(t, svc.StopPending, (<-status).State)
	}
}

func TestAServiceThatFailsSaysSo(t *testing.T) {
	failed := errors.New("no such network")
	s := &service{ctx: t.Context(), run: func(context.Context) error { return failed }}
	_, code := s.Execute(nil, nil, make(chan svc.Status, 4))
	assert.EqualValues(t, 1, code)
	assert.ErrorIs(t, s.err, failed)
}
