package differential

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// TestText: parsing a printed script returns the same script.
func TestText(t *testing.T) {
	for seed := range uint64(60) {
		for _, malformed := range []bool{false, true} {
			text := randomScript(testkit.Seeded(seed), malformed).String()
			again, err := parseScript(text)
			require.NoError(t, err, "seed %d:\n%s", seed, text)
			require.Equal(t, text, again.String(), "seed %d", seed)
		}
	}
}

func TestTextErrors(t *testing.T) {
	for _, text := range []string{"# setup {\n", "kind: Pod\n",
		"apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspce: {}\n# sync\n"} {
		_, err := parseScript(text)
		require.Error(t, err, text)
	}
}
