package dataplane

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// On a big-endian processor the weights of endpoints cannot be read, so NewKernel fails before it touches anything.
func TestABigEndianProcessorIsRefused(t *testing.T) {
	require.NoError(t, checkByteOrder(binary.LittleEndian))
	require.ErrorContains(t, checkByteOrder(binary.BigEndian), "mode ipvs does not work on a big-endian processor")
	if checkByteOrder(binary.NativeEndian) != nil {
		_, err := NewKernel(t.Context(), "")
		assert.Equal(t, checkByteOrder(binary.BigEndian), err)
	}
}
