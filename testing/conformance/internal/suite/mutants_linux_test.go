package suite

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Every faulty backend is caught by the cases written for its fault.
func TestEveryMutantIsCaught(t *testing.T) {
	need.Program(t, "nft")
	t.Parallel()
	byName := map[string]cases.Case{}
	for _, c := range cases.All() {
		byName[c.Name] = c
	}
	for m, catchers := range simple.MustCatch {
		t.Run(string(m), func(t *testing.T) {
			simple.NeedPrograms(t, m)
			t.Parallel()
			b := testbedOf(t, simple.Factory(m), 1)
			// Where the right backend would answer it does so within milliseconds; mutants are not waited for.
			b.Timeouts.Answer = time.Second
			// A wrong answer is an error only if it arrives within this time.
			b.Timeouts.Quiet = 500 * time.Millisecond
			b.Timeouts.Repair = time.Second
			for name, sign := range catchers {
				c, ok := byName[name]
				require.True(t, ok, "there is no case %q", name)
				err := runCase(context.Background(), b, c)
				if err == nil || !strings.Contains(err.Error(), sign) {
					// On a machine that stalls for a second, right results look wrong, and wrong answers come too late to be noticed.
					short := b.Timeouts
					b.Timeouts.Answer, b.Timeouts.Quiet = testbed.DefaultTimeouts().Answer, testbed.DefaultTimeouts().Answer
					err = runCase(context.Background(), b, c)
					b.Timeouts = short
				}
				if assert.Error(t, err, "not caught by %q", name) {
					assert.Contains(t, err.Error(), sign, "caught by %q, but with the wrong message", name)
				}
			}
		})
	}
}
