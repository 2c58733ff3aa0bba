package diffstore

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
)

// Leaf is the value of an entry while it is being described and compared. L is the leaf's own type, usually a pointer.
type Leaf[L any] interface {
	// Reset empties the leaf for a new description. It may keep memory.
	Reset()
	// Equal reports whether applying other would have the same effect.
	Equal(other L) bool
}

// NewBufferStore returns a store of text: each leaf is an io.Writer.
func NewBufferStore[K cmp.Ordered]() *Store[K, *BufferLeaf] {
	return New[K](func() *BufferLeaf { return new(BufferLeaf) })
}

// BufferLeaf collects bytes. All writes of one wave are appended, even across several calls of Get.
type BufferLeaf struct {
	buf []byte
}

// Write appends; it never fails.
func (l *BufferLeaf) Write(p []byte) (int, error) {
	l.buf = append(l.buf, p...)
	return len(p), nil
}

// WriteString appends; it never fails.
func (l *BufferLeaf) WriteString(s string) (int, error) {
	l.buf = append(l.buf, s...)
	return len(s), nil
}

// WriteByte appends; it never fails.
func (l *BufferLeaf) WriteByte(c byte) error {
	l.buf = append(l.buf, c)
	return nil
}

// Bytes returns what has been written. It is the leaf's own memory: do not write to it, and do not use it after the
// wave.
func (l *BufferLeaf) Bytes() []byte { return l.buf }

// String returns what has been written.
func (l *BufferLeaf) String() string { return string(l.buf) }

// Reset implements [Leaf].
func (l *BufferLeaf) Reset() { l.buf = l.buf[:0] }

// Equal implements [Leaf].
func (l *BufferLeaf) Equal(other *BufferLeaf) bool { return bytes.Equal(l.buf, other.buf) }

// NewAnyStore returns a store of values of any type. equal reports whether applying a or b would have the same effect.
// If it is nil, reflect.DeepEqual is used.
func NewAnyStore[K cmp.Ordered, V any](equal func(a, b V) bool) *Store[K, *AnyLeaf[V]] {
	return New[K](func() *AnyLeaf[V] { return &AnyLeaf[V]{equal: equal} })
}

// AnyLeaf holds a value of any type.
type AnyLeaf[V any] struct {
	value V
	equal func(a, b V) bool
}

// Set sets the value. The leaf keeps it, so what it points to must not change any more.
func (l *AnyLeaf[V]) Set(v V) { l.value = v }

// Get returns the value, the zero value if none has been set in this wave.
func (l *AnyLeaf[V]) Get() V { return l.value }

// String returns the value as fmt.Print writes it.
func (l *AnyLeaf[V]) String() string { return fmt.Sprint(l.value) }

// Reset implements [Leaf].
func (l *AnyLeaf[V]) Reset() { l.value = *new(V) }

// Equal implements [Leaf].
func (l *AnyLeaf[V]) Equal(other *AnyLeaf[V]) bool {
	if l.equal == nil {
		return reflect.DeepEqual(l.value, other.value)
	}
	return l.equal(l.value, other.value)
}
