package brain

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// A stream ends at its maximum age, even if its client never lets the server end it between two batches.
func TestAStreamEndsWhateverItsClientDoes(t *testing.T) {
	objects := append(baseObjects(), web("a", "10.0.0.1")...)
	noise := make([]byte, 1<<20) // more than fits into a stream whose client does not read
	for i := range noise {
		noise[i] = ' ' + byte(rand.N(90))
	}
	objects[3].(*corev1.Service).Annotations = map[string]string{"noise": string(noise)}
	server := serve(t, Options{Source: newCluster(objects...), limits: limits{heartbeat: 5 * time.Millisecond,
		maxAge: 10 * time.Millisecond, maxOverdue: 50 * time.Millisecond}}, socket(t))
	t.Run("it does not acknowledge", func(t *testing.T) {
		stream := rawStream(t, server.target, &remotev1.Hello{Node: "n1"})
		var err error
		for err == nil {
			_, err = stream.Recv()
		}
		assert.Equal(t, codes.Aborted, status.Code(err), err)
	})
	t.Run("it does not read", func(t *testing.T) {
		before := server.sent("reset")
		sends := func() bool { return server.sent("reset") > before }
		for !sends() { // on a busy machine a stream may be old before anything is sent on it
			_ = rawStream(t, server.target, &remotev1.Hello{Node: "n1"})
			for start := time.Now(); !sends() && time.Since(start) < time.Second; {
				time.Sleep(time.Millisecond)
			}
		}
		server.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 0 })
	})
}
