package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

func TestAServerTriesAnAddressAgainUntilItIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		start := time.Now()
		var tries []time.Duration
		s := &server{name: "metrics", address: "127.0.0.1:10249", handler: http.NotFoundHandler(),
			listen: func(context.Context, string, string) (net.Listener, error) {
				tries = append(tries, time.Since(start))
				if len(tries) == 3 {
					cancel()
				}
				return nil, errors.New("it is taken")
			},
		}
		require.NoError(t, s.run(ctx))
		assert.Equal(t, []time.Duration{0, bindRetry, 2 * bindRetry}, tries)
	})
}
