package suite

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/random"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func TestTheSimpleBackendPassesInRandomStates(t *testing.T) {
	need.Program(t, "nft")
	t.Parallel()
	for seed := range uint64(3) {
		Random(t, simple.Factory(""), seed, 20)
	}
}

func TestRandomStatesFindMutantsAndShrinkThem(t *testing.T) {
	need.Program(t, "nft")
	for _, m := range []simple.Mutant{simple.ForgetsSourceRanges, simple.KeepsEndpoints, simple.ForgetsHairpin,
		simple.IgnoresAffinity, simple.ForgetsFailures,
		simple.RejectsInsteadOfDrops} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			b := testbedOf(t, simple.Factory(m), 1)
			b.Timeouts.Answer, b.Timeouts.Shrink = time.Second, time.Hour
			err := random.Run(t.Context(), b, 1, 60)
			// A machine that stalls for a second makes right results look wrong once.
			for try := 1; try < 5 && err != nil && strings.Contains(err.Error(), "It could not be reproduced"); try++ {
				err = random.Run(t.Context(), b, 1, 60)
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
