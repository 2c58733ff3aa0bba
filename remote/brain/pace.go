package brain

import (
	"sync/atomic"
	"time"
)

// pace decides how long the server waits after a revision before it makes the next one. It limits the cost of revisions
// to half of one core: a change reaches a hundred nodes within milliseconds, and thousands as soon as that half allows.
// A change that comes after the wait is sent at once.
//
// Except for messages, only the goroutine of [Server.Run] uses it, and it reads no clock: callers pass the time.
type pace struct {
	fixed    time.Duration // exactly this pause instead; 0: by cost
	cpu      func() (used time.Duration, ok bool)
	messages messageCount
	each     time.Duration // the cost of a message, learned from the last revisions

	// Of the last revision:
	begun, ended time.Time
	work         time.Duration // how long it took to compute
	usedBefore   time.Duration // of cpu
	before       messageTotal
}

const (
	// perRevision is how long a revision lasts, as a multiple of its cost: 2 is half of one core.
	perRevision = 2
	// minPause is the shortest time between two revisions, so that a burst is one or two of them.
	minPause = 5 * time.Millisecond
	// maxPause is the longest, whatever the budget: changes may be late, but they are sent.
	maxPause = time.Second
	// A client that pauses for at least longPause between two applies gets one message per pause, however many
	// revisions there are, so fewer revisions would save little. Messages to such clients extend a revision to
	// heldPeriod at most.
	longPause, heldPeriod = maxPause * 3 / 4, 100 * time.Millisecond
)

// The processor time of a message and its acknowledgement, mostly in gRPC, TLS and the kernel: 70 to 120 us, measured.
// The limits keep a garbage collection, or other work of the process, from counting as the cost of messages.
const (
	usualPerMessage = 100 * time.Microsecond
	minPerMessage   = 20 * time.Microsecond
	maxPerMessage   = 200 * time.Microsecond
)

// messageCount counts the messages to clients. Any goroutine may count.
type messageCount struct{ sent, held atomic.Int64 }

// messageTotal is the number of messages sent; held are those that waited for the end of a long pause.
type messageTotal struct{ sent, held int64 }

func (m *messageCount) total() messageTotal {
	return messageTotal{sent: m.sent.Load(), held: m.held.Load()}
}

// begin begins a revision.
func (p *pace) begin(now time.Time) {
	p.begun, p.before = now, p.messages.total()
	p.usedBefore, _ = p.cpu()
}

// end ends a revision. work is how long it took to compute; the rest of the time it was being sent.
func (p *pace) end(now time.Time, work time.Duration) { p.ended, p.work = now, work }

// wait returns how long the server should wait before it asks again; 0: the next revision may begin. The answer may
// change, because messages are still sent after a revision, for example to clients that acknowledge the one before.
func (p *pace) wait(now time.Time) time.Duration {
	if p.fixed != 0 {
		return p.ended.Add(p.fixed).Sub(now)
	}
	cost := p.cost()
	next := p.begun.Add(cost.period())
	if earliest := p.ended.Add(minPause); next.Before(earliest) {
		next = earliest
	}
	if latest := p.ended.Add(maxPause); next.After(latest) {
		next = latest
	}
	wait := next.Sub(now)
	if wait <= 0 {
		p.learn(cost)
	}
	return max(0, wait)
}

// cost is what the last revision has cost so far.
func (p *pace) cost() revisionCost {
	now := p.messages.total()
	return revisionCost{work: p.work, each: p.each,
		messages: messageTotal{sent: now.sent - p.before.sent, held: now.held - p.before.held}}
}

// learn updates the cost of a message from a revision whose cost was mostly messages.
func (p *pace) learn(c revisionCost) {
	used, ok := p.cpu()
	n := time.Duration(c.messages.sent)
	if !ok || n*p.each <= c.work {
		return
	}
	each := min(max((used-p.usedBefore-c.work)/n, minPerMessage), maxPerMessage)
	p.each += (each - p.each) / 8 // slowly, because a garbage collection may coincide
}

// revisionCost is the cost of a revision.
type revisionCost struct {
	work     time.Duration // to compute it
	messages messageTotal
	each     time.Duration // of these
}

// period is how long a revision should last, from its beginning to that of the next one.
func (c revisionCost) period() time.Duration {
	of := func(messages int64) time.Duration { return perRevision * (c.work + time.Duration(messages)*c.each) }
	return min(of(c.messages.sent), max(of(c.messages.sent-c.messages.held), heldPeriod))
}
