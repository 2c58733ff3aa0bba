package brain

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"sync"

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
}

func (c *countedCreds) Clone() credentials.TransportCredentials {
	clone := *c
	clone.TransportCredentials = c.TransportCredentials.Clone()
	return &clone
}

func (c *countedCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
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
	return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { c.connections.done(subject) })}, info, nil
}

// countedConn is a connection that is counted until it is closed. While a write waits for the client, nothing is read
// from it either: gRPC answers each stream that it refuses, may quote the request in the answer, and keeps all answers
// that wait. Otherwise a client that does not read them could make it keep any number.
type countedConn struct {
	net.Conn
	closed func()
	writes sync.Mutex // held during a write
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.writes.Lock()
	defer c.writes.Unlock()
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.writes.Lock()
	defer c.writes.Unlock()
	return c.Conn.Write(b)
}

func (c *countedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
