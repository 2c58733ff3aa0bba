package watch

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

func TestCallsStopWaitsForTheOthersAndLetsNoMoreBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		assert.True(t, c.begin())
		stopped := false
		go func() {
			c.stop()
			stopped = true
		}()
		synctest.Wait()
		assert.False(t, stopped)
		assert.False(t, c.begin())
		c.done()
		synctest.Wait()
		assert.True(t, stopped)
	})
}
