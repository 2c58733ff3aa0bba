package diffstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/diffstore"
)

func TestBufferLeafCollectsWhatIsWritten(t *testing.T) {
	var l diffstore.BufferLeaf
	_, err := fmt.Fprintf(&l, "hello %d", 1)
	require.NoError(t, err)
	n, err := l.WriteString(", ")
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	require.NoError(t, l.WriteByte('b'))
	n, err = l.Write([]byte("cd"))
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	assert.Equal(t, "hello 1, bcd", l.String())
	assert.Equal(t, "hello 1, bcd", string(l.Bytes()))
	l.Reset()
	assert.Empty(t, l.String())
}

// Each entry has two leaves that take turns, so it is the third wave that finds a leaf which has been used.
func TestALeafIsEmptyUntilItIsSetInTheWave(t *testing.T) {
	values := diffstore.NewAnyStore[string](func(a, b int) bool { return a == b })
	for wave := range 4 {
		values.Reset()
		assert.Zero(t, values.Get("a").Get(), "wave %d", wave)
		values.Get("a").Set(wave)
		values.Done()
		assert.True(t, values.HasChanges(), "wave %d", wave)
	}
	values.Reset()
	values.Get("a") // wanted, with the zero value
	values.Done()
	for e := range values.Updated() {
		old, _ := e.Applied()
		assert.Equal(t, []int{0, 3}, []int{e.Value().Get(), old.Get()})
	}
	assert.True(t, values.HasChanges())
}

func TestAnyStoreWithoutEqualComparesDeeply(t *testing.T) {
	s := diffstore.NewAnyStore[string, []string](nil)
	for _, c := range []struct {
		value   []string
		changed bool
	}{
		{[]string{"x", "y"}, true},
		{[]string{"x", "y"}, false},
		{[]string{"x", "z"}, true},
	} {
		s.Reset()
		s.Get("a").Set(c.value)
		s.Done()
		assert.Equal(t, c.changed, s.HasChanges(), "%v", c.value)
	}
	leaf := new(diffstore.AnyLeaf[int])
	assert.True(t, leaf.Equal(new(diffstore.AnyLeaf[int])))
}

// A value that is set twice in a wave, finally to the old value, has not changed.
func TestAnyLeafComparesTheLastValueOfAWave(t *testing.T) {
	s := diffstore.NewAnyStore[string](func(a, b int) bool { return a == b })
	s.Get("a").Set(1)
	s.Done()
	s.Reset()
	s.Get("a").Set(2)
	s.Get("a").Set(1)
	s.Done()
	assert.False(t, s.HasChanges())
}
