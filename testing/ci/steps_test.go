// Package ci tests the runner of the checks, .ci/run and .ci/deep, with steps that the tests make up: what it does
// about a failure, what it says at the end, and that it runs the right tests again. It has tests only.
package ci

import (
	"io/fs"
	"os"
	"path"
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
		run := tier // what waits for a step to end, or runs beside it
		if tier != "change" && tier != "beside" {
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

// TestEveryKernelHasItsSteps: .ci/step has one step for nftables and one for iptables on every kernel that testing/vm
// can boot, and one for the encoders on every other processor.
func TestEveryKernelHasItsSteps(t *testing.T) {
	root := filepath.Join("..", "..")
	kernels, err := os.ReadFile(filepath.Join(root, "testing", "vm", "kernels"))
	require.NoError(t, err)
	script, err := os.ReadFile(filepath.Join(root, ".ci", "step"))
	require.NoError(t, err)
	others := 0
	for line := range strings.Lines(string(kernels)) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) == 0 {
			continue
		}
		name := fields[0]
		want := []string{"step_nft-" + name + `() { nft_on ` + name + ` "$@"; }`,
			"step_iptables-" + name + `() { iptables_on ` + name + ` "$@"; }`}
		if len(fields) == 4 {
			others++
			want = []string{"step_" + name + `() { encoders ` + name + ` "$@"; }`}
		}
		for _, function := range want {
			assert.True(t, strings.Contains(string(script), "\n"+function+"\n"), ".ci/step lacks %s", function)
		}
	}
	assert.NotZero(t, others)
}

// TestEveryTestRunsInATier: each module of the repository has a step that runs all of its tests, those that need
// Windows run under Wine, those that need IPVS on a kernel that has it, and those that call need.Deep run in .ci/deep.
func TestEveryTestRunsInATier(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, ".ci", "step"))
	require.NoError(t, err)
	script := string(text)
	function := func(name string) string {
		_, body, found := strings.Cut(script, "\n"+name+"() ")
		require.True(t, found, name)
		end := strings.Index(body, "\n}")
		if line := strings.IndexByte(body, '\n'); strings.HasSuffix(body[:line], "}") {
			end = line
		}
		return body[:end]
	}
	assert.Contains(t, function("step_test"), "./...")
	assert.Contains(t, function("step_deep"), "KPL_DEEP=1")
	underWine := function("step_wine") + function("step_wine-all")
	withIPVS := function("step_ipvs") + function("step_ipvs-random")
	needsIPVS := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\tneedIPVS\(t\)`)

	modules, windows, ipvs := 0, 0, 0
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		folder := path.Dir(name)
		switch {
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.Name() == "go.mod" && folder == "testing/integration":
			modules++
			assert.Contains(t, function("step_integration"), `against "$version" ./...`)
			assert.Contains(t, function("step_integration"), "KPL_DEEP=1")
			assert.Contains(t, function("against"), "in_integration env KPL_KUBERNETES=\"$1\" go test")
		case d.Name() == "go.mod" && folder != ".":
			modules++
			module := path.Base(folder)
			assert.Contains(t, function("step_"+module), "in_"+module+` go test -count=1 "${@:-./...}"`)
			assert.Contains(t, function("in_"+module), "cd "+folder+" ")
		case strings.HasSuffix(d.Name(), "_windows_test.go"):
			windows++
			assert.Regexp(t, `\./`+regexp.QuoteMeta(folder)+`[ \n]`, underWine, name)
		case folder == "backends/ipvs" && strings.HasSuffix(d.Name(), "_test.go"):
			text, err := os.ReadFile(filepath.Join(root, name))
			require.NoError(t, err)
			for _, match := range needsIPVS.FindAllSubmatch(text, -1) {
				ipvs++
				assert.Regexp(t, `[(^|]`+string(match[1])+`[)$|]`, withIPVS, "it needs a kernel that has IPVS")
			}
		}
		return nil
	})
	require.NoError(t, err)
	assert.GreaterOrEqual(t, modules, 3)
	assert.NotZero(t, windows)
	assert.NotZero(t, ipvs)
}
