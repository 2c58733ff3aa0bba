package localstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// TestEditsOfAList compares with a list that is built anew, for lists that are edited in place and for those that are
// not.
func TestEditsOfAList(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			d := testkit.Seeded(seed)
			list := make([]*int, testkit.Pick(d, 0, 1, 3, copyBelow-1, copyBelow+1, 3*copyBelow))
			for i := range list {
				list[i] = &i
			}
			var want []*int
			var edits []edit[*int]
			dense := testkit.Pick(d, 2, 20, 500)
			for i := 0; i <= len(list); i++ {
				for d.IntN(dense) == 0 {
					v := new(int)
					edits = append(edits, edit[*int]{at: i, inserts: true, value: v})
					want = append(want, v)
				}
				switch {
				case i == len(list):
				case d.IntN(dense) == 0:
					edits = append(edits, edit[*int]{at: i, removes: true})
				case d.IntN(dense) == 0:
					v := new(int)
					edits = append(edits, edit[*int]{at: i, removes: true, inserts: true, value: v})
					want = append(want, v)
				default:
					want = append(want, list[i])
				}
			}
			got := applyEdits(list, edits)
			require.Len(t, got, len(want))
			for i := range want {
				require.Same(t, want[i], got[i], "%d", i)
			}
			for _, left := range got[len(got):cap(got)] {
				require.Nil(t, left, "what is gone is let go")
			}
		})
	}
}
