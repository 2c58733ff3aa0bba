package brain

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// A refused client can connect again at once. It does not fill the log, whatever it sends.
func TestRefusedStreamsDoNotFillTheLog(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	log := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(args, "stream has ended") {
			lines = append(lines, args)
		}
	}, funcr.Options{})
	b := openServer(t)
	stop, served := background(t, func(ctx context.Context) error {
		return b.Serve(klog.NewContext(ctx, log), b.ln, ServeOptions{})
	})
	bad := &remotev1.Hello{Node: "n1", Options: &remotev1.Options{NodeIPs: [][]byte{[]byte(strings.Repeat("x", 1<<17))}}}
	for range 5 * logBurst {
		_, err := rawStream(t, b.target, bad).Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	stop()
	require.NoError(t, <-served)
	assert.LessOrEqual(t, len(lines), 2*logBurst) // the second half would take logBurst*logPause
	for _, line := range lines {
		assert.Less(t, len(line), 2*maxLogText)
	}
}

func TestTheLogSaysHowManyStreamsItLeavesOut(t *testing.T) {
	var e endedStreams
	now := time.Now()
	next := func(code codes.Code) int {
		if omitted, ok := e.next(code, now); ok {
			return omitted
		}
		return -1
	}
	for range logBurst {
		assert.Zero(t, next(codes.InvalidArgument))
	}
	for range 3 {
		assert.Equal(t, -1, next(codes.InvalidArgument))
	}
	assert.Zero(t, next(codes.PermissionDenied), "others are not hidden")
	now = now.Add(logPause)
	assert.Equal(t, 3, next(codes.InvalidArgument))
	assert.Equal(t, -1, next(codes.InvalidArgument))
	now = now.Add(time.Hour)
	assert.Equal(t, 1, next(codes.InvalidArgument))
	for range logBurst - 1 {
		assert.Zero(t, next(codes.InvalidArgument))
	}
	assert.Equal(t, -1, next(codes.InvalidArgument))
}
