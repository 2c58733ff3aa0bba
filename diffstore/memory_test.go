package diffstore

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A store that lives for months keeps nothing of deleted keys.
func TestKeysThatAreGoneAreForgotten(t *testing.T) {
	s := NewBufferStore[string]()
	kept := func() []int {
		s.Reset()
		s.Done()
		s.Reset()
		return []int{len(s.entries), len(s.queue), len(s.diff)}
	}
	s.Get("applied")
	s.Done()
	assert.Equal(t, []int{0, 0, 0}, kept())

	s.Get("given up before it was done")
	assert.Equal(t, []int{0, 0, 0}, kept())

	s.Get("taken back")
	s.Delete("taken back")
	assert.Equal(t, []int{0, 0, 0}, kept())

	s.Get("failed")
	s.Done()
	s.NotApplied("failed")
	assert.Equal(t, []int{0, 0, 0}, kept())

	s.Done()
	s.Amend()
	s.Get("taken back from a wave that amends")
	s.Delete("taken back from a wave that amends")
	s.Done()
	s.Amend()
	assert.Equal(t, []int{0, 0, 0}, []int{len(s.entries), len(s.queue), len(s.diff)})
	assert.Nil(t, s.queue[:1][0])
}
