package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func TestTheSimpleBackendPassesInRandomStates(t *testing.T) {
	need.Program(t, "nft")
	t.Parallel()
	for seed := range uint64(3) {
		Random(t, simpleFactory(""), seed, 20)
	}
}

func TestRandomStatesFindMutantsAndShrinkThem(t *testing.T) {
	need.Program(t, "nft")
	for _, m := range []mutant{forgetsSourceRanges, keepsEndpoints, forgetsHairpin, ignoresAffinity, forgetsFailures,
		rejectsInsteadOfDrops} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			b := testbedOf(t, simpleFactory(m), 1)
			b.timeouts.Answer, b.timeouts.shrink = time.Second, time.Hour
			err := b.random(t.Context(), 1, 60)
			// A machine that stalls for a second makes right results look wrong once.
			for try := 1; try < 5 && err != nil && strings.Contains(err.Error(), "It could not be reproduced"); try++ {
				err = b.random(t.Context(), 1, 60)
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), "flow:")
			assert.Contains(t, err.Error(), "What it takes:")
			_, small, _ := strings.Cut(err.Error(), "What it takes:")
			small, _, _ = strings.Cut(small, "The ruleset:")
			assert.LessOrEqual(t, strings.Count(small, "wave "), 2, small)
			assert.LessOrEqual(t, strings.Count(small, "svc-"), 2, small)
			t.Log(small)
		})
	}
}
