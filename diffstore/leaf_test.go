package diffstore_test

import (
	"fmt"
	"math"
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
	texts := diffstore.NewJSONStore[string, int]()
	for wave := range 4 {
		values.Reset()
		texts.Reset()
		assert.Zero(t, values.Get("a").Get(), "wave %d", wave)
		assert.Zero(t, texts.Get("a").Get(), "wave %d", wave)
		assert.Empty(t, texts.Get("a").String(), "wave %d", wave)
		values.Get("a").Set(wave)
		require.NoError(t, texts.Get("a").Set(wave))
		values.Done()
		texts.Done()
		assert.True(t, values.HasChanges(), "wave %d", wave)
		assert.True(t, texts.HasChanges(), "wave %d", wave)
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

func TestTheLastValueOfAWaveCounts(t *testing.T) {
	s := diffstore.NewJSONStore[string, int]()
	require.NoError(t, s.Get("a").Set(1))
	s.Done()
	s.Reset()
	require.NoError(t, s.Get("a").Set(2))
	require.NoError(t, s.Get("a").Set(1))
	s.Done()
	assert.False(t, s.HasChanges())
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

// A value that is set twice in a wave, back to what it was, has not changed.
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

func TestJSONLeafComparesWhatTheValueWasWhenItWasSet(t *testing.T) {
	s := diffstore.NewJSONStore[string, map[string]int]()
	value := map[string]int{"x": 1, "y": 2}
	wave := func() bool {
		s.Reset()
		require.NoError(t, s.Get("a").Set(value))
		s.Done()
		return s.HasChanges()
	}
	assert.True(t, wave())
	assert.False(t, wave())
	value["y"] = 3 // the same map as in the store
	assert.True(t, wave())
	assert.Equal(t, `{"x":1,"y":3}`, s.Get("a").String())
}

func TestAValueWithoutJSONIsInEveryDiff(t *testing.T) {
	s := diffstore.NewJSONStore[string, float64]()
	for range 3 {
		s.Reset()
		require.Error(t, s.Get("a").Set(math.Inf(1)))
		s.Done()
		require.True(t, s.HasChanges())
		for e := range s.Changed() {
			assert.Equal(t, math.Inf(1), e.Value().Get())
			assert.Empty(t, e.Value().String())
		}
	}
	s.Reset()
	require.NoError(t, s.Get("a").Set(1))
	s.Done()
	assert.True(t, s.HasChanges())
	s.Reset()
	require.NoError(t, s.Get("a").Set(1))
	s.Done()
	assert.False(t, s.HasChanges())

	// Nor does an error outlive its wave.
	s.Reset()
	require.Error(t, s.Get("a").Set(math.NaN()))
	s.Done()
	for range 3 {
		s.Reset()
		s.Get("a")
		s.Done()
	}
	assert.False(t, s.HasChanges())
}
