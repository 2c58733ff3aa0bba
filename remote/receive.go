package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// receive takes what the client says, until the stream ends.
func (c *session) receive() {
	for {
		request, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			c.end(context.Canceled)
			return
		}
		if err != nil {
			if status.Code(err) == codes.Internal ||
				status.Code(err) == codes.ResourceExhausted { // what does not decode
				c.end(errors.New("malformed message: " + status.Convert(err).Message()))
			} else {
				c.end(context.Canceled)
			}
			return
		}
		look, err := c.take(request)
		if err != nil {
			c.end(err)
			return
		}
		if look {
			c.signal()
		}
	}
}

// take takes one message, and tells whether run has to look at it. An error ends the stream.
func (c *session) take(r *remotev1.Request) (look bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ack := r.GetAck(); {
	case ack != nil && c.busy && ack.GetRevision() == c.sent.revision:
		c.has, c.busy = c.sent, false
		c.behind = time.Time{}
		c.applied(ack.GetError())
		return c.news, nil
	case ack != nil && c.has.version != nil &&
		ack.GetRevision() == c.has.revision: // a retry, or what did not need a Sync
		c.applied(ack.GetError())
	case ack != nil:
		return false, fmt.Errorf("revision %d is acknowledged, which was not sent last", ack.GetRevision())
	case r.GetDigests() != nil:
		c.digests = r.GetDigests()
		return true, nil
	case r.GetHello() != nil:
		return false, errors.New("a second Hello")
	default:
		return false, errors.New("a message that says nothing")
	}
	return false, nil
}

func (c *session) applied(problem string) {
	if problem != "" && c.applyErr == "" {
		c.server.metrics.applyErrors.Inc()
	}
	c.applyErr = problem[:min(len(problem), maxErrorText)]
}

// maxErrorText bounds what is kept of a client's error.
const maxErrorText = 1000
