package brain

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// ServeOptions say which clients may connect.
type ServeOptions struct {
	// TLS is for listeners that are not Unix sockets. It needs certificates, and ClientCAs: clients have to have a
	// certificate from one of them. GetConfigForClient may return other ones, for authorities that are renewed. A stream
	// ends when its client's certificate has expired, within a heartbeat.
	TLS *tls.Config
	// Insecure serves without TLS on a listener that is not a Unix socket. Then Node is needed.
	Insecure bool
	// Node returns the name of a client's node. Default: CertificateNode, which takes it from the client's certificate;
	// on a Unix socket ClaimedNode, because the mode of the socket decides who may open it. Clients count for the limits
	// of the node that it returns.
	Node NodeFunc
	// Viewers are the common names of client certificates, for example of people, whose holders may request the state of
	// any node. They cannot be combined with Node. On a Unix socket they are not needed. A viewer has the limits of a
	// node.
	Viewers []string
}

const (
	maxStreams = 2 // of a connection

	// maxHeaders is the maximum size of the headers of a stream in bytes, as HTTP/2 counts it: gRPC sends a few hundred.
	// They are kept as long as the stream lasts.
	maxHeaders = 8 << 10
	// maxBeforeHello is how many bytes of requests all streams of one certificate may hold before their purpose is known.
	maxBeforeHello = maxPerPrincipal * maxStreams * (maxHeaders + maxRequest)

	// There are many connections, and most messages are small. TLS already buffers what it reads.
	readBuffer  = 0
	writeBuffer = 4 << 10 // bytes, of connections that are being written to
	// A connection has one stream, so there is no second one to compress headers for.
	headerTable = 0
)

// Serve accepts clients until ctx ends, and then returns nil. It closes the listener. It may be called several times,
// for several listeners.
func (s *Server) Serve(ctx context.Context, ln net.Listener, opts ServeOptions) error {
	creds, nodeOf, err := opts.check(ln)
	if err != nil {
		return errors.Join(fmt.Errorf("invalid options: %w", err), ln.Close())
	}
	codec, err := wire.NewCodec()
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	counted := &countedCreds{TransportCredentials: creds, connections: &s.connections,
		anonymous: 2 * s.limits.maxClients, // so that others are sent the reason
		refused:   s.metrics.refused.WithLabelValues("connections"), handshakes: s.handshakes, ended: ctx.Done()}
	server := newGRPCServer(counted, codec, s.limits.maxIdle)
	remotev1.RegisterBrainServer(server, &brainService{server: s, nodeOf: nodeOf, viewers: opts.Viewers, ctx: ctx})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err = server.Serve(ln)
	server.Stop() // the listener may have failed; Stop returns when all streams have ended
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serving %v: %w", ln.Addr(), err)
}

// newGRPCServer returns a gRPC server that needs little memory for each connection, and closes those that are idle.
func newGRPCServer(creds credentials.TransportCredentials, codec wire.Codec, maxIdle time.Duration) *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(creds), grpc.ForceServerCodecV2(codec),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders),
		grpc.StaticStreamWindowSize(wire.Window), grpc.StaticConnWindowSize(wire.Window),
		grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer), grpc.SharedWriteBuffer(true),
		grpc.HeaderTableSize(headerTable), grpc.ConnectionTimeout(maxConnectTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 15 * time.Second,
			MaxConnectionIdle: maxIdle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second,
			PermitWithoutStream: true}),
		grpc.InTapHandle(endable), grpc.WaitForHandlers(true),
	)
}

func (o ServeOptions) check(ln net.Listener) (credentials.TransportCredentials, NodeFunc, error) {
	nodeOf := o.Node
	switch {
	case len(o.Viewers) > 0 && nodeOf != nil:
		return nil, nil, errors.New("both Node and Viewers are set")
	case ln.Addr().Network() == "unix":
		if o.TLS != nil {
			return nil, nil, errors.New("TLS on a Unix socket")
		}
		if nodeOf == nil {
			nodeOf = ClaimedNode
		}
		return insecure.NewCredentials(), nodeOf, nil
	case o.Insecure && o.TLS != nil:
		return nil, nil, errors.New("both TLS and Insecure are set")
	case o.Insecure:
		if nodeOf == nil {
			return nil, nil, errors.New("option Insecure needs a Node function, which says which node a client is")
		}
		return insecure.NewCredentials(), nodeOf, nil
	case o.TLS == nil:
		return nil, nil, errors.New("neither TLS nor Insecure is set")
	case o.TLS.ClientCAs == nil:
		return nil, nil, errNoClientCAs
	}
	config := verifyingClients(o.TLS)
	if get := config.GetConfigForClient; get != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			own, err := get(hello)
			switch {
			case err != nil || own == nil:
				return nil, err
			case own.ClientCAs == nil:
				return nil, errNoClientCAs
			}
			return verifyingClients(own), nil
		}
	}
	if nodeOf == nil {
		nodeOf = viewedNode(o.Viewers)
	}
	return credentials.NewTLS(config), nodeOf, nil
}

var errNoClientCAs = errors.New("TLS without ClientCAs: anyone could connect")

// verifyingClients returns a configuration that requires client certificates. Each connection is verified anew: a
// session that a client resumed would keep what was verified when it began, and Go before 1.25.7 does not notice that
// the authorities have changed since.
func verifyingClients(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.SessionTicketsDisabled = true
	c.ClientAuth, c.MinVersion = tls.RequireAndVerifyClientCert, max(c.MinVersion, tls.VersionTLS12)
	return c
}

// brainService is the gRPC service.
type brainService struct {
	remotev1.UnimplementedBrainServer
	server  *Server
	nodeOf  NodeFunc
	viewers []string
	ctx     context.Context
	ended   endedStreams
}

func (b *brainService) Watch(stream grpc.BidiStreamingServer[remotev1.Request, remotev1.Update]) error {
	err := b.server.watch(stream, b.nodeOf, b.viewers)
	if s := status.Convert(err); len(s.Message()) > wire.MaxErrorText { // it may quote the client
		err = status.Error(s.Code(), wire.FirstOf(s.Message()))
	}
	if gone := status.Code(err) == codes.Canceled; err != nil && !gone && b.ctx.Err() == nil {
		address := "unknown"
		if p, ok := peer.FromContext(stream.Context()); ok {
			address = p.Addr.String()
		}
		b.ended.log(klog.FromContext(b.ctx), address, status.Code(err), err.Error())
	}
	return err
}
