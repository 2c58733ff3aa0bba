// Package ci tests the runner of the checks, .ci/run and .ci/deep, with steps that the tests make up: what it does
// about a failure, what it says at the end, and that it runs the right tests again. It has tests only.
package ci

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTheStepsAreWhatRuns compares the repository's own table of steps with the functions that run them.
func TestTheStepsAreWhatRuns(t *testing.T) {
	table, err := os.ReadFile(filepath.Join("..", "..", ".ci", "steps"))
	require.NoError(t, err)
	script, err := os.ReadFile(filepath.Join("..", "..", ".ci", "step"))
	require.NoError(t, err)

	var names, tiers []string
	tierOf := map[string]string{} // "deep" for all parts of .ci/deep, which are one run
	for line := range strings.Lines(string(table)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		require.GreaterOrEqual(t, len(fields), 4, "a step needs a name, a tier, what it needs and what it is: %s", line)
		name, tier := fields[0], fields[1]
		assert.Regexp(t, `^[a-z0-9][a-z0-9.-]*$`, name)
		assert.NotContains(t, tierOf, name, "%s is there twice", name)
		run := tier
		if tier != "change" {
			run = "deep"
		}
		for need := range strings.SplitSeq(fields[2], ",") {
			if need != "-" {
				assert.Equal(t, run, tierOf[need], "%s needs %s, which is not before it in the same run", name, need)
			}
		}
		tierOf[name] = run
		names, tiers = append(names, name), append(tiers, tier)
	}
	for _, tier := range tiers {
		assert.NotContains(t, names, tier, "who calls .ci/deep could mean a step or a part")
	}
	assert.Contains(t, tiers, "change")

	var functions []string
	for _, match := range regexp.MustCompile(`(?m)^step_([^ ()]+)\(\)`).FindAllSubmatch(script, -1) {
		functions = append(functions, string(match[1]))
	}
	slices.Sort(functions)
	slices.Sort(names)
	assert.Equal(t, names, functions)
}
