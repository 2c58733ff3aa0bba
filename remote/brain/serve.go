package brain

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// NodeFunc returns the name of a client's node, or an error if the client is not admitted. claimed is the name that the
// client sent, and may be empty. peer.FromContext has its address and certificates.
type NodeFunc func(ctx context.Context, claimed string) (string, error)

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
	// Viewers are the common names of client certificates, of people for example, whose holders may have the state of
	// any node, the one that they name. They cannot be combined with Node. On a Unix socket they are not needed. A viewer
	// has the limits of a node.
	Viewers []string
}

// ClaimedNode is the [NodeFunc] that trusts the name that clients send: for Unix sockets, tests, and networks that keep
// out unauthorized clients by other means.
func ClaimedNode(_ context.Context, claimed string) (string, error) { return claimed, nil }

// CertificateNode is the [NodeFunc] that takes the name from the client's certificate, whose common name is
// system:node:NAME.
func CertificateNode(ctx context.Context, claimed string) (string, error) {
	state := tlsState(ctx)
	if len(state.VerifiedChains) == 0 {
		return "", errors.New("no verified client certificate")
	}
	subject := state.PeerCertificates[0].Subject.CommonName
	name, ok := strings.CutPrefix(subject, "system:node:")
	if !ok || name == "" {
		return "", fmt.Errorf("the certificate is for %q, which is not system:node:NAME", subject)
	}
	if claimed != "" && claimed != name {
		return "", fmt.Errorf("the certificate is for node %q, not %q", name, claimed)
	}
	return name, nil
}

// viewedNode returns a [NodeFunc] that lets viewers name the node, and is CertificateNode for all others.
func viewedNode(viewers []string) NodeFunc {
	return func(ctx context.Context, claimed string) (string, error) {
		if claimed != "" && viewerOf(ctx, viewers) != "" {
			return claimed, nil
		}
		return CertificateNode(ctx, claimed)
	}
}

// viewerOf returns the name of the viewer that a client is, "" if it is none.
func viewerOf(ctx context.Context, viewers []string) string {
	state := tlsState(ctx)
	if len(state.VerifiedChains) == 0 {
		return ""
	}
	name := state.PeerCertificates[0].Subject.CommonName
	if !slices.Contains(viewers, name) {
		return ""
	}
	return name
}

// Listen opens a listener for a target: unix:///PATH, or host:port. A Unix socket has the mode, 0600 by default, from
// the moment at which it can be opened. It replaces a socket that an earlier process left; one that is in use, or a
// file that is not a socket, is an error.
func Listen(ctx context.Context, target string, mode fs.FileMode) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(target, "unix://")
	var config net.ListenConfig
	if !isUnix {
		return config.Listen(ctx, "tcp", target)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: another server already listens there", target)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s: exists and is not a socket", target)
	}
	if mode == 0 {
		mode = 0o600
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".") // nobody else can open what is in it, whatever the umask
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(private) }()
	hidden := filepath.Join(private, "s") // not longer than it has to be: there is a limit
	ln, err := config.Listen(ctx, "unix", hidden)
	if err != nil {
		return nil, err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(hidden, mode)
	var own fs.FileInfo
	if err == nil {
		own, err = os.Lstat(hidden)
	}
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return &unixListener{ln, path, own}, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	net.Listener
	path string
	own  fs.FileInfo // of the socket
}

// Addr names the socket as clients know it.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close removes the socket first: as long as it can be opened, no other process puts its own in its place.
func (l *unixListener) Close() error {
	var removed error
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		removed = os.Remove(l.path)
	}
	return errors.Join(removed, l.Listener.Close())
}

// certificateEnd returns when a client's certificate expires; zero: it has none.
func certificateEnd(ctx context.Context) time.Time {
	if certificates := tlsState(ctx).PeerCertificates; len(certificates) > 0 {
		return certificates[0].NotAfter
	}
	return time.Time{}
}

// tlsState is that of a stream's connection; zero: it has no TLS.
func tlsState(ctx context.Context) tls.ConnectionState {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return tls.ConnectionState{}
	}
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	return info.State
}

const (
	maxRequest = 256 << 10 // bytes of a message from a client: twice what digests are asked for at a time
	maxStreams = 2         // of a connection

	// There are many connections, and most messages are small. TLS buffers what it reads, so that a second buffer is of
	// no use.
	readBuffer  = 0
	writeBuffer = 4 << 10 // bytes, of connections that are being written to
	// A connection has one stream: there is no next one for which to remember its headers.
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
	server := newGRPCServer(&countedCreds{creds, s}, codec, s.opts.limits.maxIdle)
	remotev1.RegisterBrainServer(server, &service{server: s, nodeOf: nodeOf, viewers: opts.Viewers, ctx: ctx})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err = server.Serve(ln)
	server.Stop() // the listener may have failed, and clients be there; it returns when nobody is served any more
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serving %v: %w", ln.Addr(), err)
}

// newGRPCServer returns a gRPC server that needs little memory for each connection, and closes those that are idle.
func newGRPCServer(creds credentials.TransportCredentials, codec wire.Codec, maxIdle time.Duration) *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(creds), grpc.ForceServerCodecV2(codec),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(wire.Window), grpc.StaticConnWindowSize(wire.Window),
		grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer), grpc.SharedWriteBuffer(true),
		grpc.HeaderTableSize(headerTable), grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 15 * time.Second,
			MaxConnectionIdle: maxIdle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second,
			PermitWithoutStream: true}),
		grpc.InTapHandle(endable), grpc.WaitForHandlers(true),
	)
}

// countedCreds lets in a limited number of connections with one certificate, and of those without any. They count before
// a client has said anything, because what has come of a message takes memory.
type countedCreds struct {
	credentials.TransportCredentials
	server *Server
}

func (c *countedCreds) Clone() credentials.TransportCredentials {
	return &countedCreds{c.TransportCredentials.Clone(), c.server}
}

func (c *countedCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err
	}
	subject := "" // anybody who can connect: they are not told apart
	if tlsInfo, ok := info.(credentials.TLSInfo); ok && len(tlsInfo.State.PeerCertificates) > 0 {
		subject = "certificate of " + tlsInfo.State.PeerCertificates[0].Subject.CommonName
	}
	if !c.server.countConnection(subject, 1) {
		c.server.metrics.refused.WithLabelValues("connections").Inc()
		return nil, nil, errors.Join(fmt.Errorf("the %s has enough connections already",
			cmp.Or(wire.FirstOf(subject), "server")), conn.Close())
	}
	return &countedConn{conn, sync.OnceFunc(func() { c.server.countConnection(subject, -1) })}, info, nil
}

// countedConn is a connection that counts until it is closed.
type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// countConnection counts a connection more or less of a certificate's subject, or of nobody knows whom if it is "", and
// returns false if there are too many.
func (s *Server) countConnection(subject string, by int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := maxPerParty
	if subject == "" {
		most = 2 * s.opts.limits.maxClients // so that one too many is told why
	}
	return count(s.connections, subject, by, most)
}

// count counts one more or less of something with a name, and returns false if that has enough.
func count[K comparable](of map[K]int, name K, by, most int) bool {
	if by > 0 && of[name] >= most {
		return false
	}
	if of[name] += by; of[name] == 0 {
		delete(of, name)
	}
	return true
}

// cancelKey is the key of what cancels the context of a stream, in that context.
type cancelKey struct{}

// endable makes streams that can be ended at any time. In gRPC the server's side of a stream ends when its handler
// returns; but that waits for the client to say something, or for the end of the stream's context.
func endable(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, cancelKey{}, cancel), nil
}

// endStream ends a stream that endable has made, by its context. It tells the client why before gRPC tells it that the
// stream was canceled. gRPC does not promise that its streams have WriteStatus: if a version does not, streams still
// end, but clients see "canceled" in place of the reason.
func endStream(ctx context.Context, why *status.Status) {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ WriteStatus(*status.Status) error }); ok {
		_ = s.WriteStatus(why) // the connection has gone: nobody to tell
	}
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
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

// verifyingClients returns a configuration with which clients need a certificate.
func verifyingClients(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.ClientAuth, c.MinVersion = tls.RequireAndVerifyClientCert, max(c.MinVersion, tls.VersionTLS12)
	return c
}

// service is the service as gRPC calls it.
type service struct {
	remotev1.UnimplementedBrainServer
	server  *Server
	nodeOf  NodeFunc
	viewers []string
	ctx     context.Context
}

func (b *service) Watch(stream grpc.BidiStreamingServer[remotev1.Request, remotev1.Update]) error {
	err := b.server.watch(stream, b.nodeOf, b.viewers)
	if s := status.Convert(err); len(s.Message()) > wire.MaxErrorText { // it may quote what the client has sent
		err = status.Error(s.Code(), wire.FirstOf(s.Message()))
	}
	if gone := status.Code(err) == codes.Canceled; err != nil && !gone && b.ctx.Err() == nil {
		address := "unknown"
		if p, ok := peer.FromContext(stream.Context()); ok {
			address = p.Addr.String()
		}
		klog.FromContext(b.ctx).Info("A client's stream has ended", "client", address, "reason", err.Error())
	}
	return err
}
