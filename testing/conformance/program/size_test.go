package program

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	for _, z := range []Size{{1, 1}, {1000, 10}, {60000, 8}, {1, 500000}} {
		require.NoError(t, z.Validate())
	}
	for _, z := range []Size{{0, 1}, {1, 0}, {-1, -1}, {60001, 1}, {1000, 501}, {1 << 62, 1 << 62}} {
		require.Error(t, z.Validate(), "%v", z)
	}
	assert.Equal(t, "1000x10", Size{1000, 10}.String())
}
