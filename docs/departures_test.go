package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryDepartureIsListed: each rule that says "depart" is on the page about departures, and the page names no rule
// that does not exist.
func TestEveryDepartureIsListed(t *testing.T) {
	semantics, err := os.ReadFile("semantics.md")
	require.NoError(t, err)
	departures, err := os.ReadFile("departures.md")
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, name := range regexp.MustCompile(`\bS\d+a?\b`).FindAllString(string(departures), -1) {
		listed[name] = true
	}
	require.NotEmpty(t, listed)
	exists := map[string]bool{}
	for rule := range strings.SplitSeq(string(semantics), "\n- **S") {
		number, text, ok := strings.Cut(rule, "**")
		if name := "S" + number; ok {
			exists[name] = true
			if strings.Contains(text, "**depart**") {
				assert.True(t, listed[name], "%s departs, but departures.md does not name it", name)
			}
		}
	}
	for name := range listed {
		assert.True(t, exists[name], "departures.md names %s, which semantics.md does not have", name)
	}
}
