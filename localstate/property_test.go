package localstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// checkHistory requires that a history, in any order of the events of different objects and with flushes anywhere,
// gives the result that the rules require for the final objects, and that nothing is left after these are deleted.
func checkHistory(t *testing.T, d testkit.Random, opts options, h history) {
	scratch := h.final().play(t, opts, indexAbove, func() bool { return false })
	want := scratch.got.String()
	require.Equal(t, newReference(opts, scratch.got.node, h.final()).lines(), scratch.got.lines(), "by the rules")
	require.Empty(t, scratch.got.checkForm())

	flushes := []func() bool{
		func() bool { return true },
		func() bool { return d.IntN(4) == 0 },
		func() bool { return false },
	}
	for i, flush := range flushes {
		order := h
		if i > 0 {
			order = h.shuffled(d)
		}
		w := order.play(t, opts, testkit.Pick(d, 0, 2, indexAbove), flush)
		require.Equal(t, want, w.got.String(), "from scratch, and by events")
		require.Equal(t, scratch.state.NoLocalEndpoints(), w.state.NoLocalEndpoints())
		require.Empty(t, checkExplanations(w.state, w.got))
		require.Equal(t, Changes{}, w.flush(), "a flush without an event")

		for _, e := range h.final().shuffled(d) {
			if _, isNode := e.obj.(*corev1.Node); isNode {
				continue
			}
			w.delete(e.obj)
			if flush() {
				w.flush()
			}
		}
		w.flush()
		require.Empty(t, w.got.services)
		require.Empty(t, w.got.endpoints)
		requireNothingKept(t, w.state)
		require.Empty(t, w.got.checkImmutable())
	}
}

// play applies a history to a State and flushes it at the end. Services with more than indexAbove endpoints have an
// index.
func (h history) play(t *testing.T, opts options, indexAbove int, flush func() bool) *world {
	w := newWorldWith(t, opts)
	w.state.indexAbove = indexAbove
	for _, e := range h {
		if e.deleted {
			w.delete(e.obj)
		} else {
			w.set(e.obj)
			require.False(t, w.set(deepCopy(e.obj)), "the same object again changes nothing")
		}
		if flush() {
			w.flush()
		}
	}
	w.flush()
	return w
}

func deepCopy(obj metav1.Object) metav1.Object {
	return obj.(runtime.Object).DeepCopyObject().(metav1.Object)
}

func TestOrderAndBatchingDoNotMatter(t *testing.T) {
	seeds := 400
	if testing.Short() {
		seeds = 50
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			d := testkit.Seeded(seed)
			opts := randomOptions(d)
			var h history
			for range 10 + d.IntN(40) {
				h = append(h, randomEvent(d))
			}
			checkHistory(t, d, opts, h)
		})
	}
}
