package command

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows/svc"
)

func TestTheProgramRunsAsAServiceIfItIsAskedTo(t *testing.T) {
	c, err := Parse([]string{"--windows-service", "--network-name=cbr0"}, io.Discard)
	require.NoError(t, err)
	called := errors.New("called")
	c.ApplyLogging = nil
	c.asService = func(context.Context, func(context.Context) error) error { return called }
	assert.ErrorIs(t, c.Run(t.Context()), called)
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
