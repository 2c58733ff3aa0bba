package remote

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

const (
	// chunkSize is the size in bytes, before compression, at which a message is sent and the next one begun. For each
	// connection gRPC permanently keeps a buffer of the size of its largest message: those of a full state are about 2
	// KB.
	chunkSize     = 1 << 14
	compressAbove = 1 << 11
)

// batches are the encoded differences that lead to the current version of a class. Each is encoded once, by the first
// session that needs it; other sessions that need the same one wait for that.
type batches struct {
	buckets *buckets // of the version

	mu sync.Mutex
	by map[*version]*batch
}

// batch is the difference between two versions: for each message to send, the encoded fields of an Update.
type batch struct {
	once   sync.Once
	chunks []*frame
	// whole is the complete message for a client that has the older version and whose own state is the same in both;
	// nil if one message is not enough.
	whole *frame
}

func newBatches(b *buckets) *batches { return &batches{buckets: b, by: map[*version]*batch{}} }

// from returns the difference of the current version from an older one, or from nothing if that is nil. Of the former,
// triggers returns when somebody changed pods in between.
func (b *batches) from(old, current *version, triggers func() [2][]time.Time) *batch {
	b.mu.Lock()
	found := b.by[old]
	if found == nil {
		found = &batch{}
		b.by[old] = found
	}
	b.mu.Unlock()
	found.once.Do(func() {
		var w chunkWriter
		var before *sink.Snapshot
		if old != nil {
			before = old.state
		}
		for c := range current.state.ChangesSince(before) {
			w.service(encodeChange(c))
		}
		if old != nil {
			for i, times := range triggers() {
				for _, t := range times {
					w.update.Triggers = append(w.update.Triggers,
						&remotev1.Trigger{Family: uint32(model.Families()[i]), Nanos: uint64(t.UnixNano())})
				}
			}
		}
		found.chunks = w.done()
		if old != nil && len(found.chunks) == 1 {
			head := marshal(&remotev1.Update{Kind: remotev1.Kind_DIFF})
			tail := marshal(&remotev1.Update{Sync: &remotev1.Sync{Revision: current.revision}})
			found.whole = newFrame(slices.Concat(head, found.chunks[0].pieces.Materialize(), tail))
		}
	})
	return found
}

func encodeChange(c sink.Change) *remotev1.ServiceChange {
	out := &remotev1.ServiceChange{Namespace: c.Name.Namespace, Name: c.Name.Name}
	if c.New == nil {
		out.Deleted = true
		return out
	}
	out.Whole = c.Old == nil
	if c.ServiceChanged() {
		out.Service = encodeService(c.New.Service)
	}
	for before, now := range c.Endpoints() {
		if now != nil {
			out.Endpoints = append(out.Endpoints, encodeEndpoint(now))
		} else {
			out.Removed = append(out.Removed, encodeKey(before.Key()))
		}
	}
	return out
}

// chunkWriter collects changes in messages of a reasonable size.
type chunkWriter struct {
	update remotev1.Update
	size   int
	chunks []*frame
	zip    *gzip.Writer // made when it is first needed, and reused, because it is large
}

func (w *chunkWriter) service(c *remotev1.ServiceChange) {
	w.update.Services = append(w.update.Services, c)
	w.grown(proto.Size(c))
}

func (w *chunkWriter) part(p *remotev1.NodePart) {
	w.update.Own = append(w.update.Own, p)
	w.grown(proto.Size(p))
}

func (w *chunkWriter) grown(by int) {
	if w.size += by; w.size >= chunkSize {
		w.flush()
	}
}

func (w *chunkWriter) flush() {
	b := marshal(&w.update)
	if len(b) > compressAbove {
		b = marshal(&remotev1.Update{Compressed: w.compress(b)})
	}
	if len(b) > 0 {
		w.chunks = append(w.chunks, newFrame(b))
	}
	w.update.Reset()
	w.size = 0
}

func (w *chunkWriter) done() []*frame {
	w.flush()
	return w.chunks
}

func marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil { // a text that is not UTF-8, which no Kubernetes object has
		return nil
	}
	return b
}

func (w *chunkWriter) compress(b []byte) []byte {
	var out bytes.Buffer
	if w.zip == nil {
		w.zip = gzip.NewWriter(&out)
	} else {
		w.zip.Reset(&out)
	}
	_, _ = w.zip.Write(b) // to memory: it does not fail
	_ = w.zip.Close()
	return out.Bytes()
}

// ownChanges are the changes from what a node had of its own to what it has.
func (w *chunkWriter) ownChanges(before, now map[model.ServiceName]*localstate.NodePart) {
	for name := range before {
		if now[name] == nil {
			w.part(encodePart(name, nil))
		}
	}
	for name, p := range now {
		if !p.Equal(before[name]) {
			w.part(encodePart(name, p))
		}
	}
}

// frame is an Update that is encoded already, in pieces: in protobuf the pieces of a message, one after the other,
// are the message. It is shared with other clients, and sending it copies nothing.
type frame struct{ pieces mem.BufferSlice }

func newFrame(pieces ...[]byte) *frame {
	f := &frame{}
	for _, b := range pieces {
		if len(b) > 0 {
			f.pieces = append(f.pieces, mem.SliceBuffer(b))
		}
	}
	return f
}

// between returns the frame with something before and after it.
func (f *frame) between(before, after []byte) *frame {
	return &frame{slices.Concat(newFrame(before).pieces, f.pieces, newFrame(after).pieces)}
}

// codec sends frames as they are, and other messages as protobuf does.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.pieces, nil
	}
	return c.CodecV2.Marshal(v)
}

func newCodec() (codec, error) {
	inner := encoding.GetCodecV2("proto")
	if inner == nil {
		return codec{}, fmt.Errorf("gRPC has no protobuf codec")
	}
	return codec{inner}, nil
}
