package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoPortIsGivenTwice(t *testing.T) {
	given := map[int]bool{}
	for range 1000 { // of some 14,000: without a record one would almost certainly be repeated
		port := freePort(t)
		require.False(t, given[port], port)
		given[port] = true
	}
}
