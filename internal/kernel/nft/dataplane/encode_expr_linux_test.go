package dataplane

import (
	"testing"

	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
)

// Every expression of the sample, as the library that has them all would encode it.
func TestExpressionsAreEncodedAsTheLibraryDoes(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		seen := 0
		for _, o := range s.create().ops {
			if o.rule == nil {
				continue
			}
			for _, statement := range o.rule.Statements {
				list, err := encode(statement, s.key.Family)
				require.NoError(t, err)
				for _, e := range list {
					var want, got batch
					data, err := expr.Marshal(nfnetlink.Proto(s.key.Family), e)
					require.NoError(t, err)
					want.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
					require.NoError(t, got.expression(s.key.Family, e))
					assert.Equal(t, want.Buf, got.Buf, "%T of %T", e, statement)
					seen++
				}
			}
		}
		assert.Greater(t, seen, 60)
	})
}
