package persistent

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// number is a Key that counts how often it is compared.
type number struct {
	n        int
	compared *int
}

func (a number) Compare(b number) int {
	*a.compared++
	return cmp.Compare(a.n, b.n)
}

type (
	testMap   = Map[number, int]
	testEntry = Entry[number, int]
)

// tester makes keys.
type tester struct {
	*testing.T
	compared int
}

func (t *tester) entries(of map[int]int) (list []testEntry) {
	for _, k := range slices.Sorted(maps.Keys(of)) {
		list = append(list, testEntry{number{k, &t.compared}, of[k]})
	}
	return list
}

// upTo is a map of the numbers below n.
func (t *tester) upTo(n int) testMap {
	all := map[int]int{}
	for k := range n {
		all[k] = 1
	}
	return testMap{}.With(t.entries(all))
}

// check compares a map with a plain one, and looks at its shape.
func (t *tester) check(want map[int]int, m testMap) {
	got, last := map[int]int{}, math.MinInt
	for k, v := range m.All() {
		require.Less(t, last, k.n, "the keys are in order")
		got[k.n], last = v, k.n
	}
	require.Equal(t, want, got)
	require.Equal(t, len(want) == 0, m.IsEmpty())
	for range 5 {
		k := rand.IntN(100)
		require.Equal(t, want[k], m.Get(number{k, &t.compared}))
	}
	t.checkShape(m.root)
}

func (t *tester) checkShape(n *node[number, int]) {
	if n == nil {
		return
	}
	require.LessOrEqual(t, max(n.left.depth(), n.right.depth())-min(n.left.depth(), n.right.depth()), 1)
	require.Equal(t, 1+max(n.left.depth(), n.right.depth()), n.height)
	require.NotZero(t, n.Value)
	t.checkShape(n.left)
	t.checkShape(n.right)
}

// difference is what ChangesSince yields.
func difference(before, now map[int]int) map[int]int {
	d := map[int]int{}
	for k := range before {
		d[k] = now[k]
	}
	maps.Copy(d, now)
	maps.DeleteFunc(d, func(k, _ int) bool { return before[k] == now[k] })
	return d
}

func (t *tester) checkChanges(want map[int]int, now, before testMap) {
	got, last := map[int]int{}, math.MinInt
	for k, v := range now.ChangesSince(before) {
		require.Less(t, last, k.n, "the keys are in order")
		got[k.n], last = v, k.n
	}
	require.Equal(t, want, got)
}

// scenario makes versions, some of them of an older one, and compares all with plain maps. take returns a number below
// its argument.
func (t *tester) scenario(versions, keys int, take func(int) int) {
	plain, made := []map[int]int{{}}, []testMap{{}}
	for range versions {
		from := len(made) - 1
		if take(4) == 0 {
			from = take(len(made))
		}
		changes := map[int]int{}
		n := take(4)
		if take(8) == 0 {
			n = take(keys)
		}
		for range n {
			changes[take(keys)] = take(3) // 0 removes it
		}
		next := maps.Clone(plain[from])
		maps.Copy(next, changes)
		maps.DeleteFunc(next, func(_, v int) bool { return v == 0 })
		plain, made = append(plain, next), append(made, made[from].With(t.entries(changes)))
		t.check(next, made[len(made)-1])
		other := take(len(made))
		t.checkChanges(difference(plain[other], next), made[len(made)-1], made[other])
	}
	for i, m := range made {
		t.check(plain[i], m) // no later version has changed it
	}
}

func TestMapsAreLikePlainOnes(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		(&tester{T: t}).scenario(60, 1+r.IntN(100), r.IntN)
	}
}

func FuzzMap(f *testing.F) {
	f.Add([]byte("some changes of a map, and some more of another version"))
	f.Fuzz(func(t *testing.T, data []byte) {
		take := func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		}
		(&tester{T: t}).scenario(min(len(data)/4, 100), 100, take)
	})
}

func TestKeysInAnyOrderMakeFlatTrees(t *testing.T) {
	const n = 1 << 12
	orders := map[string]func(i int) int{
		"ascending":  func(i int) int { return i },
		"descending": func(i int) int { return n - i },
		"inwards":    func(i int) int { return []int{i, 2*n - i}[i%2] },
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			x, m := tester{T: t}, testMap{}
			for i := range n {
				m = m.With(x.entries(map[int]int{order(i): 1}))
			}
			x.checkShape(m.root)
			assert.LessOrEqual(t, m.root.height, 18)
			for i := range n {
				m = m.With(x.entries(map[int]int{order(i): 0}))
			}
			assert.True(t, m.IsEmpty())
		})
	}
	x := tester{T: t}
	assert.Equal(t, 13, x.upTo(n).root.height, "as flat as can be, if they come together")
}

func TestWhatChangesNothingIsTheSameMap(t *testing.T) {
	x := tester{T: t}
	m := x.upTo(1000)
	assert.Equal(t, m, m.With(nil))
	assert.Same(t, m.root, m.With(x.entries(map[int]int{3: 1, 500: 1, 1000: 0})).root)
}

// What a change costs follows from what it changes, as does the difference between versions.
func TestCostFollowsChange(t *testing.T) {
	const n, depth = 1 << 14, 15
	x := tester{T: t}
	m := x.upTo(n)
	cost := func(f func()) int {
		x.compared = 0
		f()
		return x.compared
	}
	for name, change := range map[string]map[int]int{
		"an entry that is replaced": {777: 2}, "the first": {0: 2}, "the last": {n - 1: 2},
		"one that is new": {n / 3: 0, n: 1}, "the first one that goes": {0: 0}, "one that comes before all": {-1: 1},
		"the root that goes": {n / 2: 0},
	} {
		t.Run(name, func(t *testing.T) {
			entries := x.entries(change)
			allocs := testing.AllocsPerRun(5, func() { m.With(entries) })
			assert.LessOrEqual(t, allocs, float64(4*depth*len(change)))
			now := m.With(entries)
			assert.LessOrEqual(t, cost(func() { m.With(entries) }), 4*depth*len(change))
			for _, pair := range [][2]testMap{{now, m}, {m, now}} {
				found := 0
				assert.LessOrEqual(t, cost(func() {
					for range pair[0].ChangesSince(pair[1]) {
						found++
					}
				}), 4*depth*len(change))
				assert.Equal(t, len(change), found)
			}
		})
	}
}

func TestIterationsCanBeLeftEarly(t *testing.T) {
	x := tester{T: t}
	m := x.upTo(100)
	for k := range m.All() {
		assert.Zero(t, k.n)
		break // an iterator that continues after this panics
	}
	for k := range m.ChangesSince(testMap{}) {
		assert.Zero(t, k.n)
		break
	}
}

func TestANodeIsSmall(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(node[text, *int]{}), uintptr(64), "a size class of the allocator")
}

// text is as large as the name of a Service.
type text struct{ namespace, name string }

func (a text) Compare(b text) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}
