package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSlowMachinesAreWaitedFor(t *testing.T) {
	for value, factor := range map[string]int{"": 1, "1": 1, "6": 6} {
		t.Setenv("KPL_PATIENCE", value)
		p, err := patienceHere()
		require.NoError(t, err)
		assert.EqualValues(t, factor, p.Answer/defaultPatience().Answer, value)
		assert.Equal(t, defaultPatience().Quiet, p.Quiet, "where nothing must come, nothing is waited for")
	}
	for _, value := range []string{"x", "0", "-1"} {
		t.Setenv("KPL_PATIENCE", value)
		_, err := patienceHere()
		require.ErrorContains(t, err, "KPL_PATIENCE="+value)
	}
}
