package brain

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
)

// countedCreds limits the connections with one certificate, and those without any. It counts a connection before the
// client has sent a request, because a message takes memory as soon as it arrives.
type countedCreds struct {
	credentials.TransportCredentials
	connections *counter[string]
	anonymous   int // the limit for all connections without a certificate together
	refused     prometheus.Counter
	handshakes  chan struct{}   // holds one element for each handshake in progress
	ended       <-chan struct{} // closed when the server ends
}

const (
	// maxHandshakes is how many handshakes are in progress at a time. A client may be anybody then, and Go keeps up to
	// half a megabyte of what each sends.
	maxHandshakes = 128
	// maxHandshakeTime is how long one may take.
	maxHandshakeTime = 3 * time.Second
	// maxConnectTime is how long a client may take to connect, and wait for its turn.
	maxConnectTime = 20 * time.Second
)

func (c *countedCreds) Clone() credentials.TransportCredentials {
	clone := *c
	clone.TransportCredentials = c.TransportCredentials.Clone()
	return &clone
}

func (c *countedCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.handshake(raw)
	if err != nil {
		return conn, info, err
	}
	subject, most := "", c.anonymous
	if tlsInfo, ok := info.(credentials.TLSInfo); ok && len(tlsInfo.State.PeerCertificates) > 0 {
		subject, most = "certificate of "+tlsInfo.State.PeerCertificates[0].Subject.CommonName, maxPerPrincipal
	}
	if !c.connections.add(subject, most) {
		c.refused.Inc()
		return nil, nil, errors.Join(fmt.Errorf("the %s has enough connections already",
			cmp.Or(wire.FirstOf(subject), "server")), conn.Close())
	}
	return newCountedConn(conn, func() { c.connections.done(subject) }), info, nil
}

// handshake is ServerHandshake, when it is the connection's turn. Until then nothing is read from it. Without TLS there
// is nothing to wait for.
func (c *countedCreds) handshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c.Info().SecurityProtocol != "tls" {
		return c.TransportCredentials.ServerHandshake(raw)
	}
	timer := time.NewTimer(maxConnectTime)
	defer timer.Stop()
	select {
	case c.handshakes <- struct{}{}:
	case <-timer.C:
		c.refused.Inc()
		return nil, nil, errors.Join(errors.New("too many clients connect at a time"), raw.Close())
	case <-c.ended:
		return nil, nil, errors.Join(errServerEnds, raw.Close())
	}
	defer func() { <-c.handshakes }()
	// Not a deadline: gRPC has set one, and some listeners' connections have none.
	stop := time.AfterFunc(maxHandshakeTime, func() { _ = raw.Close() })
	defer stop.Stop()
	return c.TransportCredentials.ServerHandshake(raw)
}

// countedConn is a connection that is counted until it is closed. gRPC answers each stream that it refuses, may quote
// the request in the answer, and keeps all answers that wait. A client that does not read them, or sends faster than
// they are written, could make it keep any number. So nothing is read while a write waits for the client, or after
// maxUnanswered bytes without a write.
type countedConn struct {
	net.Conn
	closed func()

	mu         sync.Mutex
	written    sync.Cond // with mu: something was written, or the connection is closed
	writing    bool
	unanswered int // bytes read since the last write
	ended      bool
}

// maxUnanswered is more than a client may send before the server has to write: the data that the windows allow, or the
// headers of its streams. One that opens streams and resets them again may exceed it; it waits for the next keepalive.
const maxUnanswered = 2*wire.Window + maxStreams*maxHeaders

func newCountedConn(conn net.Conn, closed func()) *countedConn {
	c := &countedConn{Conn: conn, closed: sync.OnceFunc(closed)}
	c.written.L = &c.mu
	return c
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.unanswered += n; (c.writing || c.unanswered > maxUnanswered) && !c.ended; {
		c.written.Wait()
	}
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.writing = true
	c.mu.Unlock()
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing, c.unanswered = false, 0
	c.written.Signal()
	return n, err
}

func (c *countedConn) Close() error {
	defer c.closed()
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.written.Signal()
	return err
}
