package failures

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestLinesAreFew(t *testing.T) {
	var l Lines
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		at   time.Duration
		text string
		due  bool
	}{
		{0, "busy", true},
		{10 * time.Millisecond, "busy", false},
		{20 * time.Millisecond, "gone", false},
		{999 * time.Millisecond, "gone", false},
		{time.Second, "gone", true},
		{2 * time.Second, "gone", false},
		{3 * time.Second, "busy", true},
		{62 * time.Second, "busy", false},
		{63 * time.Second, "busy", true},
	} {
		assert.Equal(t, c.due, l.Due(c.text, begin.Add(c.at)), "%s after %v", c.text, c.at)
	}
}
