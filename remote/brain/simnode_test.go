package brain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// simNode is one node of a simulation: a lightNode with the timing of a Feed and of kubeproxy.Run.
type simNode struct {
	sim  *simulation
	zone int
	sync time.Duration // how long it takes to apply something

	mu      sync.Mutex // guards what follows
	light   lightNode
	stream  *simStream // nil: none
	down    bool       // the node itself is lost
	free    time.Time  // when it may apply again
	silence *time.Timer
	pause   time.Duration // before the next attempt to connect
	later   time.Duration // what the server has asked for
	older   time.Time     // since when servers have only had older states; zero: they have not
	got     bool          // the stream has brought a batch
	any     bool          // the next server may be the same
	order   []int         // of the brains
	next    int
	clock   int // of its state
	probe   int // the next one that it has not got
}

// The values that the dialer of package remote uses.
const (
	simMaxPause      = 15 * time.Second
	simFreshnessWait = 30 * time.Second
	simSilence       = 3 * 12 * time.Second
	simTrip          = time.Millisecond
)

// simPause is what kubeproxy.Run leaves after a Sync: a Sync takes a tenth of the time.
func simPause(sync time.Duration) time.Duration {
	return min(max(9*sync, 5*time.Millisecond), time.Second)
}

// simStream is a stream between a node and a brain, with no network in between.
type simStream struct {
	ctx    context.Context
	cancel func()
	node   *simNode
	brain  *simBrain
	in     chan *remotev1.Request
}

func (s *simStream) Context() context.Context { return s.ctx }

func (s *simStream) Recv() (*remotev1.Request, error) {
	select {
	case r := <-s.in:
		s.brain.received.Add(int64(proto.Size(r)))
		return r, nil
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *simStream) SendMsg(m any) error {
	if s.ctx.Err() != nil {
		return io.EOF
	}
	message, err := s.node.sim.parse(m)
	if err != nil {
		return err
	}
	s.brain.sent.Add(int64(len(message.raw)))
	s.node.receive(s, message)
	return nil
}

// parse parses a message of a brain, once if it is for many nodes.
func (s *simulation) parse(m any) (*lightMessage, error) {
	f, isFrame := m.(*wire.Frame)
	if !isFrame {
		return s.states.parse(wire.Encode(m.(*remotev1.Update)).Bytes())
	}
	if known := s.frames.Load(); known != nil && known.frame == f {
		return known.message, nil
	}
	message, err := s.states.parse(f.Bytes())
	s.frames.Store(&simFrame{f, message})
	return message, err
}

// simFrame is the message that was parsed last.
type simFrame struct {
	frame   *wire.Frame
	message *lightMessage
}

// connect connects the node to the next brain.
func (n *simNode) connect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down || n.stream != nil || n.sim.over.Load() {
		return
	}
	if n.any {
		n.next = n.sim.roll(len(n.order))
	}
	n.next++
	brain := n.sim.brains[n.order[n.next%len(n.order)]]
	n.any, n.got, n.later = false, false, 0
	server := brain.server.Load()
	brain.attempt()
	if server == nil {
		n.retry(status.Error(codes.Unavailable, "connection refused"))
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ctx, _ = endable(ctx, nil)
	s := &simStream{ctx: ctx, cancel: cancel, node: n, brain: brain, in: make(chan *remotev1.Request, 8)}
	hello := n.light.hello()
	if n.sim.forgetful || !n.older.IsZero() && time.Since(n.older) >= simFreshnessWait {
		hello.Seen, n.light.fresh = nil, false
	}
	s.in <- &remotev1.Request{Hello: hello}
	n.stream = s
	n.silence.Reset(simSilence)
	go func() {
		err := server.watch(s, ClaimedNode, nil)
		if !brain.mute.Load() {
			n.ended(s, err)
		}
	}()
}

// ended is what the node hears of the end of a stream.
func (n *simNode) ended(s *simStream, why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream == s {
		n.leave()
		n.retry(why)
	}
}

// leave ends the stream. The caller holds mu.
func (n *simNode) leave() {
	if n.stream != nil {
		n.stream.cancel()
		n.stream = nil
		n.silence.Stop()
	}
}

// retry connects again after a pause, as the dialer of a Feed does. The caller holds mu.
func (n *simNode) retry(why error) {
	n.any = status.Code(why) == codes.Aborted
	if n.got || n.pause == 0 {
		n.pause = firstBackoff
	}
	wait := n.pause/2 + time.Duration(n.sim.roll(int(n.pause)))
	left := time.Until(n.older.Add(simFreshnessWait))
	switch {
	case n.later > 0:
		wait = n.later
	case !n.older.IsZero() && 0 < left && left < wait:
		wait, n.pause = min(wait, left+time.Duration(n.sim.roll(int(firstBackoff)))), firstBackoff
	default:
		n.pause = min(2*n.pause, simMaxPause)
	}
	time.AfterFunc(wait, n.connect)
}

const firstBackoff = 250 * time.Millisecond

// receive takes a message.
func (n *simNode) receive(s *simStream, message *lightMessage) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream != s || s.brain.mute.Load() {
		return
	}
	n.silence.Reset(simSilence)
	kind, u, err := n.light.take(message)
	switch {
	case err != nil:
		n.sim.problem("%s: %v", n.light.name, err)
		n.leave()
		n.retry(err)
	case kind == remotev1.Kind_LATER && u.Behind:
		n.sim.behind.Add(1)
		if n.older.IsZero() {
			n.older = time.Now()
		}
		n.leave()
		n.retry(errors.New("behind"))
	case kind == remotev1.Kind_LATER:
		n.sim.laters.Add(1)
		n.later = time.Duration(u.RetryAfterMillis) * time.Millisecond
		n.leave()
		n.retry(errors.New("later"))
	case kind == remotev1.Kind_COMPARE:
		if len(u.GetCompare().GetBuckets()) == 0 {
			n.sim.compares.Add(1)
		}
		answer := n.light.answer(u.GetCompare().GetBuckets())
		time.AfterFunc(simTrip, func() { s.in <- answer })
	case kind != remotev1.Kind_HEARTBEAT && u.Sync != nil:
		n.batch(s, kind, u.Sync)
	}
}

// batch takes a complete batch: the node applies it as soon as it may.
func (n *simNode) batch(s *simStream, kind remotev1.Kind, sync *remotev1.Sync) {
	n.older, n.got = time.Time{}, true
	if kind == remotev1.Kind_RESET {
		s.brain.full()
	}
	clock := clockOf(n.light.state.snapshot)
	if clock < n.clock {
		n.sim.wentBack.Add(1)
	}
	n.clock = clock
	now := time.Now().Add(simTrip)
	if n.free.After(now) {
		now = n.free
	}
	if kind != remotev1.Kind_RESUMED {
		now = now.Add(n.sync)
		n.free = now.Add(simPause(n.sync))
	}
	time.AfterFunc(time.Until(now), func() {
		n.mu.Lock()
		n.probe = n.sim.probes.got(n.probe, clock)
		pause := simPause(n.sync)
		n.mu.Unlock()
		ack := &remotev1.Ack{Revision: sync.Revision}
		if kind != remotev1.Kind_RESUMED {
			ack.PauseMillis = uint32(pause.Milliseconds())
		}
		s.in <- &remotev1.Request{Ack: ack}
	})
}

// takes sets how long a Sync of the node takes.
func (n *simNode) takes(sync time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sync = sync
}

// lose ends the node, which loses its state.
func (n *simNode) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	n.leave()
	n.light = lightNode{name: n.light.name, states: n.light.states}
	n.clock, n.older, n.pause = 0, time.Time{}, 0
}

// start begins to connect.
func (n *simNode) start() {
	n.mu.Lock()
	n.down = false
	n.probe = n.sim.probes.all()
	n.mu.Unlock()
	n.connect()
}

func (n *simNode) String() string { return fmt.Sprint(n.light.name) }
