package brain

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// NodeFunc returns the name of a client's node, or an error if the client is not admitted. claimed is the name that the
// client sent, and may be empty. peer.FromContext has its address and certificates.
type NodeFunc func(ctx context.Context, claimed string) (string, error)

// ClaimedNode is the [NodeFunc] that trusts the name that clients send: for Unix sockets, tests, and networks that keep
// out unauthorized clients by other means.
func ClaimedNode(_ context.Context, claimed string) (string, error) { return claimed, nil }

// CertificateNode is the [NodeFunc] that takes the name from the common name of the client's certificate,
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

// viewedNode returns a [NodeFunc] that lets viewers name the node, and is CertificateNode for everybody else.
func viewedNode(viewers []string) NodeFunc {
	return func(ctx context.Context, claimed string) (string, error) {
		if claimed != "" && viewerOf(ctx, viewers) != "" {
			return claimed, nil
		}
		return CertificateNode(ctx, claimed)
	}
}

// viewerOf returns the viewer's name if the client is a viewer, "" otherwise.
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

// certificateEnd returns when the certificate of a client expires; zero: it has none.
func certificateEnd(ctx context.Context) time.Time {
	if certificates := tlsState(ctx).PeerCertificates; len(certificates) > 0 {
		return certificates[0].NotAfter
	}
	return time.Time{}
}

// tlsState returns the TLS state of a stream's connection; zero: it has no TLS.
func tlsState(ctx context.Context) tls.ConnectionState {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return tls.ConnectionState{}
	}
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	return info.State
}

// principal is the unit to which the limits of streams, classes and slots apply: a node, or a viewer that asks for
// nodes, so that viewers cannot use up the limits of the nodes that they name.
type principal struct{ node, viewer string }

func (p principal) String() string {
	if p.viewer != "" {
		return "viewer " + p.viewer
	}
	return "node " + p.node
}

// counter counts something by key. The zero value is ready to use, by any goroutine.
type counter[K comparable] struct {
	mu sync.Mutex
	of map[K]int
}

// add counts one more for a key, or returns false if there are already most.
func (c *counter[K]) add(key K, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[key] >= most {
		return false
	}
	if c.of == nil {
		c.of = map[K]int{}
	}
	c.of[key]++
	return true
}

// done counts one less.
func (c *counter[K]) done(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[key]--; c.of[key] == 0 {
		delete(c.of, key)
	}
}

func (c *counter[K]) sum() (sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.of {
		sum += n
	}
	return sum
}
