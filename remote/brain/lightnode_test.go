package brain

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// lightNode is what a node knows, for tests with thousands of them in one process. It speaks all of the protocol, with
// digests and how new its state is. What the nodes of a class have in common is decoded and held once for all, in
// lightStates; a node alone has its own parts. There is no sink: a real Feed puts the two layers together.
type lightNode struct {
	name   string
	states *lightStates

	state    *lightState // nil: none
	own      map[model.ServiceName]*localstate.NodePart
	node     *model.Node
	instance string // that sent the state, and its revision
	revision uint64
	seen     wire.Mark

	stream   string // the instance of the stream
	complete bool   // a batch of the stream has been taken
	fresh    bool   // the server was asked for a state that is not older
	forget   bool   // ask for everything
	kind     remotev1.Kind
	changes  [][]byte // messages of the batch that has begun
	parts    []byte   // of it, the node and its parts
}

// lightState is what the nodes of a class have in common, at one revision of one server. It is immutable.
type lightState struct {
	snapshot *sink.Snapshot
	states   *lightStates
	class    string

	once    sync.Once // guards what follows
	buckets wire.Buckets
	root    wire.Digest
}

// lightStates are the states that a client may have.
type lightStates struct {
	mu      sync.Mutex
	by      map[lightKey]*lightEntry
	ages    []lightKey      // of by, oldest first
	private map[uint64]bool // whether compressed messages have parts of one node
	seed    maphash.Seed

	build   sync.Mutex             // held while a state is worked out
	digests map[string]*lightState // by class: the one whose digests were worked out last, with build held
}

type lightKey struct {
	instance string // of a class
	revision uint64
}

type lightEntry struct {
	once  sync.Once
	state *lightState
	err   error
}

func newLightStates() *lightStates {
	return &lightStates{by: map[lightKey]*lightEntry{}, private: map[uint64]bool{}, seed: maphash.MakeSeed(),
		digests: map[string]*lightState{}}
}

// mostLightStates is how many states are held for nodes that have yet to get them.
const mostLightStates = 2000

func (s *lightStates) entry(key lightKey) *lightEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.by[key]
	if e == nil {
		e = &lightEntry{}
		s.by[key] = e
		if s.ages = append(s.ages, key); len(s.ages) > mostLightStates {
			delete(s.by, s.ages[0])
			s.ages = s.ages[1:]
		}
	}
	return e
}

// after returns the state that messages lead to from another one, nil: from nothing. The first node to have it works it
// out for all.
func (s *lightStates) after(key lightKey, from *lightState, messages [][]byte) (*lightState, error) {
	e := s.entry(key)
	e.once.Do(func() {
		before := &sink.Snapshot{}
		if from != nil {
			before = from.snapshot
		}
		s.build.Lock()
		defer s.build.Unlock()
		_, class, _ := strings.Cut(key.instance, "-")
		next := &lightState{snapshot: before, states: s, class: class}
		full := sink.NewFullStateFrom(before, func(_ context.Context, now *sink.Snapshot) error {
			next.snapshot = now
			return nil
		})
		var decoder wire.Decoder
		var batch wire.Batch
		for _, m := range messages {
			if _, err := decoder.Update(m, gunzip, &batch); err != nil {
				e.err = err
				return
			}
		}
		for _, changes := range batch.Services {
			for _, c := range changes {
				c.Apply(full, before)
			}
		}
		e.err = errors.Join(decoder.Err(), full.Sync(context.Background()))
		e.state = next
	})
	return e.state, e.err
}

// known notes that a state is that of another server's revision, too.
func (s *lightStates) known(key lightKey, state *lightState) {
	e := s.entry(key)
	e.once.Do(func() { e.state = state })
}

// digest works out the digests of a state, once, from those of another one of the class.
func (l *lightState) digest() wire.Digest {
	l.once.Do(func() {
		s := l.states
		s.build.Lock()
		defer s.build.Unlock()
		before := &sink.Snapshot{}
		if last := s.digests[l.class]; last != nil {
			before, l.buckets = last.snapshot, last.buckets
		}
		for c := range l.snapshot.ChangesSince(before) {
			l.buckets.Change(c)
		}
		l.root = l.buckets.Root()
		s.digests[l.class] = l
	})
	return l.root
}

func gunzip(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Fields of an Update.
const (
	updateCompressed = 4
	updateNode       = 5
	updateServices   = 6
	updateOwnReset   = 7
	updateOwn        = 8
	updateTriggers   = 9
)

// cut divides a message. head is the message without what all nodes of a class share, and parts has the fields that are
// the node's own.
func (s *lightStates) cut(b []byte) (head, parts []byte, shared bool, err error) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, nil, false, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			return nil, nil, false, protowire.ParseError(size)
		}
		whole := b[:n+size]
		switch field {
		case updateCompressed:
			inner, _ := protowire.ConsumeBytes(b[n:])
			more, err := s.privateIn(inner)
			if err != nil {
				return nil, nil, false, err
			}
			parts, shared = append(parts, more...), true
		case updateServices, updateTriggers:
			shared = true
		case updateOwn, updateNode, updateOwnReset:
			parts = append(parts, whole...)
		default:
			head = append(head, whole...)
		}
		b = b[len(whole):]
	}
	return head, parts, shared, nil
}

// privateIn returns what is one node's own in a compressed message. Those that have nothing are compressed for all, and
// looked at once.
func (s *lightStates) privateIn(compressed []byte) (parts []byte, err error) {
	key := maphash.Bytes(s.seed, compressed)
	s.mu.Lock()
	private, looked := s.private[key]
	s.mu.Unlock()
	if looked && !private {
		return nil, nil
	}
	inner, err := gunzip(compressed)
	if err != nil {
		return nil, err
	}
	if _, parts, _, err = s.cut(inner); err != nil || looked {
		return parts, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.private) > mostLightStates {
		clear(s.private)
	}
	s.private[key] = len(parts) > 0
	return parts, nil
}

// hello begins a stream.
func (n *lightNode) hello() *remotev1.Hello {
	h := &remotev1.Hello{Node: n.name, Seen: n.seen.Since(wire.Mark{})}
	if n.state != nil && !n.forget {
		h.Resume = &remotev1.Resume{InstanceID: n.instance, Revision: n.revision, Digest: n.digest()}
	}
	n.stream, n.complete, n.forget, n.fresh = "", false, false, h.Seen != nil
	n.changes, n.parts = nil, nil
	return h
}

func (n *lightNode) digest() *remotev1.Digest {
	return wire.DigestMessage(n.state.digest(), wire.OwnDigest(n.node, n.own))
}

// errDiffers: the state is not what the server says.
var errDiffers = errors.New("the state differs from the server's")

// lightMessage is a message, of which what the nodes of a class have in common is not decoded.
type lightMessage struct {
	raw    []byte
	update *remotev1.Update // the rest
	parts  []byte           // the node and its parts
	shared bool             // there is something in common
}

func (s *lightStates) parse(raw []byte) (*lightMessage, error) {
	m := &lightMessage{raw: raw, update: &remotev1.Update{}}
	head, parts, shared, err := s.cut(raw)
	if err != nil {
		return nil, err
	}
	m.parts, m.shared = parts, shared
	return m, proto.Unmarshal(head, m.update)
}

// take takes a message. It returns what is in it but for the state, and its kind or that of the batch; with Sync, other
// than in a heartbeat, the batch is complete and has been taken.
func (n *lightNode) take(m *lightMessage) (kind remotev1.Kind, u *remotev1.Update, err error) {
	u = m.update
	if u.InstanceID != "" {
		n.stream = u.InstanceID
	}
	switch u.Kind {
	case remotev1.Kind_HEARTBEAT:
		if theirs := u.GetSync().GetDigest(); theirs != nil && n.complete && u.Sync.Revision == n.revision &&
			!proto.Equal(theirs, n.digest()) {
			n.forget = true
			return u.Kind, u, errDiffers
		}
		return u.Kind, u, nil
	case remotev1.Kind_COMPARE, remotev1.Kind_LATER:
		return u.Kind, u, nil
	case remotev1.Kind_KIND_UNKNOWN:
	default:
		n.kind = u.Kind
	}
	n.parts = append(n.parts, m.parts...)
	if m.shared {
		n.changes = append(n.changes, m.raw)
	}
	if u.Sync == nil {
		return n.kind, u, nil
	}
	return n.kind, u, n.end(u.Sync)
}

// end takes a batch that is complete.
func (n *lightNode) end(sync *remotev1.Sync) (err error) {
	key, from := lightKey{n.stream, sync.Revision}, n.state
	if n.kind == remotev1.Kind_RESET {
		from = nil
	} else if from == nil {
		return fmt.Errorf("%v of a state that node %s does not have", n.kind, n.name)
	}
	switch {
	case n.kind == remotev1.Kind_RESUMED || n.kind == remotev1.Kind_DIFF && len(n.changes) == 0:
		n.states.known(key, n.state)
	default:
		if n.state, err = n.states.after(key, from, n.changes); err != nil {
			return err
		}
	}
	if len(n.parts) > 0 {
		var decoder wire.Decoder
		var batch wire.Batch
		if _, err := decoder.Update(n.parts, gunzip, &batch); err != nil {
			return err
		}
		n.takeOwn(batch)
	}
	switch news := wire.MarkOf(sync.Seen); {
	case n.kind == remotev1.Kind_RESUMED || !n.complete && n.fresh && news != wire.Mark{}:
		n.seen = n.seen.Newest(news)
	case n.complete:
		n.seen = n.seen.With(news)
	default:
		n.seen = news
	}
	n.instance, n.revision, n.complete = n.stream, sync.Revision, true
	n.changes, n.parts = nil, nil
	return nil
}

func (n *lightNode) takeOwn(batch wire.Batch) {
	if batch.Node != nil {
		n.node = batch.Node
	}
	if batch.OwnReset || n.own == nil {
		n.own = map[model.ServiceName]*localstate.NodePart{}
	}
	for _, p := range batch.Own {
		if p.Part == nil {
			delete(n.own, p.Name)
		} else {
			n.own[p.Name] = p.Part
		}
	}
}

// answer answers a question for digests.
func (n *lightNode) answer(wanted []uint32) *remotev1.Request {
	out := &remotev1.Digests{}
	if len(wanted) == 0 {
		n.state.digest()
		out.Buckets = n.state.buckets.Bytes()
	} else {
		for name, d := range wire.ServiceDigests(n.state.snapshot, wanted) {
			out.Services = append(out.Services,
				&remotev1.ServiceDigest{Namespace: name.Namespace, Name: name.Name, Digest: d.Bytes()})
		}
	}
	return &remotev1.Request{Digests: out}
}
