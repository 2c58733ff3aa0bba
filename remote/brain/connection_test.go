package brain

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// What clients send before they have shown a certificate takes memory, and they may be anybody. Few may send at a time,
// and a node that comes after many that say nothing has its turn soon.
func TestFewHandshakesAreInProgressAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		creds := &countedCreds{
			TransportCredentials: credentials.NewTLS(verifyingClients(ca.server(t))), connections: &counter[string]{},
			refused:    newServerMetrics().refused.WithLabelValues("connections"),
			handshakes: make(chan struct{}, maxHandshakes), ended: t.Context().Done()}
		begin := time.Now()
		var wg sync.WaitGroup
		for range 3 * maxHandshakes {
			_, raw := net.Pipe() // of a client that says nothing
			wg.Go(func() {
				_, _, err := creds.ServerHandshake(raw)
				assert.ErrorIs(t, err, io.ErrClosedPipe)
			})
		}
		synctest.Wait()
		assert.Len(t, creds.handshakes, maxHandshakes)

		local := *creds // on a Unix socket, without TLS
		local.TransportCredentials, local.anonymous = insecure.NewCredentials(), 1
		_, raw := net.Pipe()
		conn, _, err := local.ServerHandshake(raw)
		require.NoError(t, err)
		assert.Zero(t, time.Since(begin), "it does not wait for strangers")
		require.NoError(t, conn.Close())

		config := ca.client(t, "system:node:n1")
		config.ServerName, config.NextProtos = "127.0.0.1", []string{"h2"}
		var client net.Conn
		client, raw = net.Pipe()
		wg.Go(func() {
			node := tls.Client(client, config)
			assert.NoError(t, node.Handshake())
			time.Sleep(2 * maxHandshakeTime)
			_, err := node.Write([]byte{1})
			assert.NoError(t, err)
		})
		conn, _, err = creds.ServerHandshake(raw)
		require.NoError(t, err)
		assert.Equal(t, 3*maxHandshakeTime, time.Since(begin))
		_, err = conn.Read(make([]byte, 1)) // the time for a handshake is no limit for what follows
		require.NoError(t, err)
		wg.Wait()
		assert.Empty(t, creds.handshakes)
		require.NoError(t, raw.Close())
	})
}
