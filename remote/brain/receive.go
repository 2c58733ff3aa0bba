package brain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// receive handles messages until the stream ends, and returns why it ended.
func (c *client) receive() error {
	for {
		request, err := c.stream.Recv()
		if err != nil {
			return context.Canceled // gRPC has reported it to the client if a message cannot be read
		}
		news, err := c.take(request)
		if err != nil {
			return err
		}
		if news && c.begin() {
			c.send()
		}
	}
}

// take handles one message, and reports whether it lets a pending update be sent. An error ends the stream.
func (c *client) take(r *remotev1.Request) (news bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ack := r.GetAck(); {
	case ack != nil && c.busy && ack.GetRevision() == c.sent.revision:
		c.has, c.busy = c.sent, false
		c.behind = time.Time{}
		c.setPause(ack)
		if !c.sentSeen.IsZero() {
			c.server.metrics.delivery.Observe(time.Since(c.sentSeen).Seconds())
			c.sentSeen = time.Time{}
		}
		c.applied(ack.GetError())
		return c.news, nil
	case ack != nil && c.has.version != nil &&
		ack.GetRevision() == c.has.revision: // a retry, or what did not need a Sync
		c.applied(ack.GetError())
	case ack != nil:
		return false, fmt.Errorf("the acknowledged revision %d is not the last one sent", ack.GetRevision())
	case r.GetDigests() != nil && c.answer != nil:
		c.answer <- r.GetDigests() // there is room for one
		c.answer = nil
	case r.GetDigests() != nil:
		return false, errors.New("unrequested digests")
	case r.GetHello() != nil:
		return false, errors.New("a second Hello")
	case len(r.ProtoReflect().GetUnknown()) == 0: // otherwise it is from a newer client
		return false, errors.New("an empty message")
	}
	return false, nil
}

func (c *client) applied(problem string) {
	if problem != "" && c.applyErr == "" {
		c.server.metrics.applyErrors.Inc()
	}
	c.applyErr = wire.FirstOf(problem)
}

// maxHold is the longest time that an update waits for the end of a client's pause. With a longer wait the client might
// learn too late to leave this server, and it would look up to date meanwhile.
const maxHold = 5 * time.Second

// setPause records for how long the client pauses, and so applies nothing. The caller holds the client's mu.
func (c *client) setPause(ack *remotev1.Ack) {
	c.pausedUntil, c.pausesLong = time.Time{}, false
	if wait := min(time.Duration(ack.GetPauseMillis())*time.Millisecond, maxHold); wait > 0 {
		c.pausedUntil, c.pausesLong = time.Now().Add(wait), wait >= longPause
	}
}
