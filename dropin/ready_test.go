package dropin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
)

// While it waits for the Node, Run ends with its context however that ends.
func TestAContextThatEndsDuringTheStartIsNoError(t *testing.T) {
	needModesOfLinux(t)
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": context.WithCancel,
		"a deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Unix(0, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ctx, cancel := end(r.ctx)
			defer cancel()
			r.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				cancel()
				return true, nil, errors.New("nobody answers")
			})
			require.NoError(t, r.runIn(ctx, arguments))
		})
	}
}

// A program that Run starts, such as iptables, is ended with the context, whose cause may be an error of its own.
func TestTheCauseOfAContextThatEndsIsNoError(t *testing.T) {
	needModesOfLinux(t)
	reason, other := errors.New("time is up"), errors.New("no host name")
	lasting := func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }
	for name, c := range map[string]struct {
		end       func(context.Context) (context.Context, context.CancelFunc)
		err, want error
	}{
		"a deadline with a cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadlineCause(ctx, time.Unix(0, 0), reason)
		}, reason, nil},
		"cancelled with a cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(reason)
			return ctx, func() {}
		}, reason, nil},
		"another error":         {context.WithCancel, other, other},
		"the context goes on":   {lasting, reason, reason},
		"a request had no time": {lasting, context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ctx, cancel := c.end(r.ctx)
			defer cancel()
			r.machine.hostname = func() (string, error) {
				cancel()
				return "", fmt.Errorf("iptables: %w", c.err)
			}
			require.ErrorIs(t, r.runIn(ctx, arguments), c.want)
		})
	}
}

func TestOnReadyComesAfterTheFirstRules(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	ready := make(chan string, 2)
	stop := r.startFunc(t, func(ctx context.Context) error {
		c, err := ParseCommand(arguments, io.Discard)
		if err != nil {
			return err
		}
		c.Config.machine = r.machine
		c.Config.OnReady = func() { ready <- r.nft.Dump(tableIPv4) }
		return c.Run(ctx)
	})
	assert.Contains(t, <-ready, "10.244.1.5")
	require.NoError(t, stop())
	assert.Empty(t, ready, "once")
}

// A Syncer waits for a Sync, and fails once Run has ended.
func TestASyncerWaitsForTheRules(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	var syncer kubeproxy.Syncer
	stop := r.startFunc(t, func(ctx context.Context) error {
		c, err := ParseCommand(arguments, io.Discard)
		if err != nil {
			return err
		}
		c.Config.machine, c.Config.Syncer = r.machine, &syncer
		return c.Run(ctx)
	})
	require.NoError(t, syncer.Sync(t.Context()))
	assert.Contains(t, r.nft.Dump(tableIPv4), "10.244.1.5")
	require.NoError(t, stop())
	require.ErrorIs(t, syncer.Sync(t.Context()), kubeproxy.ErrRunEnded)
}
