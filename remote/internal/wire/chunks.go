package wire

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"iter"
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
	// chunkSize is the size in bytes, before compression, at which a message is complete. gRPC keeps a buffer as large as
	// the largest message for each connection; messages of a full state have about 2 KB, compressed.
	chunkSize     = 1 << 14
	compressAbove = 1 << 11
)

// Chunks collects changes into messages of a limited size.
type Chunks struct {
	update      remotev1.Update
	size        int
	chunks      []*Frame
	compressors *Compressors // nil: it creates its own
	zip         *gzip.Writer // taken when it is first needed, and kept until Done
}

// NewChunks returns a Chunks that takes a compressor from the pool. A zero Chunks creates its own.
func NewChunks(compressors *Compressors) *Chunks { return &Chunks{compressors: compressors} }

// Compressors is a pool of compressors. Each takes more than a megabyte, so creating one costs several times as
// much as compressing a typical message. The zero value is ready to use, by any goroutine.
type Compressors struct{ free sync.Pool }

func (c *Compressors) take() *gzip.Writer {
	if c != nil {
		if zip, ok := c.free.Get().(*gzip.Writer); ok {
			return zip
		}
	}
	return gzip.NewWriter(nil) // it is reset before it writes
}

func (c *Compressors) giveBack(zip *gzip.Writer) {
	if c != nil && zip != nil {
		c.free.Put(zip)
	}
}

// Change adds the change of a service that a comparison of two states has found.
func (w *Chunks) Change(c sink.Change) { w.Delta(DeltaOf(c)) }

// Delta adds the change of a service.
func (w *Chunks) Delta(d Delta) { w.service(d.encode()) }

// Deleted adds that a service was deleted.
func (w *Chunks) Deleted(name model.ServiceName) { w.Delta(Delta{Name: name, ServiceChanged: true}) }

// Triggers adds the times at which pods changed, by family.
func (w *Chunks) Triggers(triggers model.PerFamily[[]time.Time]) {
	for _, f := range model.Families() {
		for _, t := range *triggers.At(f) {
			w.update.Triggers = append(w.update.Triggers,
				&remotev1.Trigger{Family: uint32(f), Nanos: uint64(t.UnixNano())})
		}
	}
}

// Own adds parts of a node, nil for those that were deleted.
func (w *Chunks) Own(parts iter.Seq2[model.ServiceName, *localstate.NodePart]) {
	for name, p := range parts {
		w.part(encodePart(name, p))
	}
}

// Done returns the messages, and ends the use of the Chunks.
func (w *Chunks) Done() []*Frame {
	w.flush()
	w.compressors.giveBack(w.zip)
	w.zip = nil
	return w.chunks
}

func (w *Chunks) service(c *remotev1.ServiceChange) {
	w.update.Services = append(w.update.Services, c)
	w.grown(proto.Size(c))
}

func (w *Chunks) part(p *remotev1.NodePart) {
	w.update.Own = append(w.update.Own, p)
	w.grown(proto.Size(p))
}

func (w *Chunks) grown(by int) {
	if w.size += by; w.size >= chunkSize {
		w.flush()
	}
}

func (w *Chunks) flush() {
	f := Encode(&w.update)
	if f.Len() > compressAbove {
		f = Encode(&remotev1.Update{Compressed: w.compress(f.Bytes())})
	}
	if f.Len() > 0 || f.err != nil {
		w.chunks = append(w.chunks, f)
	}
	w.update.Reset()
	w.size = 0
}

func (w *Chunks) compress(b []byte) []byte {
	var out bytes.Buffer
	if w.zip == nil {
		w.zip = w.compressors.take()
	}
	w.zip.Reset(&out)
	_, _ = w.zip.Write(b) // to memory: it does not fail
	_ = w.zip.Close()
	return out.Bytes()
}

// Frame is an encoded Update, in pieces: in protobuf, the concatenation of the pieces of a message is the message.
// Clients share frames, and sending one copies nothing. A frame that could not be encoded fails to send.
type Frame struct {
	pieces mem.BufferSlice
	err    error
}

// Encode returns a message as a frame. It replaces bytes of texts that are not UTF-8, which protobuf rejects.
func Encode(m proto.Message) *Frame {
	b, err := proto.Marshal(m)
	if err != nil {
		makeValid(m.ProtoReflect())
		if b, err = proto.Marshal(m); err != nil {
			return &Frame{err: fmt.Errorf("encoding a message: %w", err)}
		}
	}
	f := &Frame{}
	if len(b) > 0 {
		f.pieces = mem.BufferSlice{mem.SliceBuffer(b)}
	}
	return f
}

// Join concatenates frames.
func Join(frames ...*Frame) *Frame {
	all := &Frame{}
	for _, f := range frames {
		all.pieces, all.err = append(all.pieces, f.pieces...), cmp.Or(all.err, f.err)
	}
	return all
}

// Flat returns the frame in one piece.
func (f *Frame) Flat() *Frame { return &Frame{mem.BufferSlice{mem.SliceBuffer(f.Bytes())}, f.err} }

// Bytes returns a copy of the message, in one piece.
func (f *Frame) Bytes() []byte { return f.pieces.Materialize() }

// Err returns why the message could not be encoded, or nil.
func (f *Frame) Err() error { return f.err }

// Len returns the number of bytes of the message.
func (f *Frame) Len() int { return f.pieces.Len() }

// Codec sends frames as they are, and encodes other messages as protobuf does.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() (Codec, error) {
	inner := encoding.GetCodecV2("proto")
	if inner == nil {
		return Codec{}, fmt.Errorf("gRPC has no protobuf codec")
	}
	return Codec{inner}, nil
}

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		return f.pieces, f.err
	}
	return c.CodecV2.Marshal(v)
}
