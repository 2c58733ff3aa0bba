package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// README and tested.md say of other kernels and processors what the steps of .ci do on them before a release: the
// kernels, the processors, the packages, and the number of cases that send packets.
func TestThePlatformsAreThoseOfTheSteps(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	// row returns the row of a table that begins with a text.
	row := func(path, first string) string {
		for line := range strings.Lines(read(path)) {
			if strings.HasPrefix(line, "| "+first) {
				return line
			}
		}
		require.Fail(t, "no such row", "%s: %s", path, first)
		return ""
	}
	step := read("../.ci/step")
	changing := regexp.MustCompile(`(?m)^changing='(.*)'$`).FindStringSubmatch(step)
	require.NotNil(t, changing)
	reports := conformanceReports(t)
	i := slices.IndexFunc(reports, func(r conformanceReport) bool {
		return r.Implementation.Name == "kube-proxy-lib" && r.Implementation.Mode == "nftables"
	})
	n := len(slices.DeleteFunc(slices.Clone(reports[i].Results), func(r report.Result) bool {
		return !regexp.MustCompile(changing[1]).MatchString(strings.ReplaceAll(r.Case, " ", "_"))
	}))
	cases := fmt.Sprintf("%d cases", n)

	linux, kernels := row("../README.md", "Linux 5.10 or newer"), row("tested.md", "kernels")
	assert.Contains(t, linux, cases)
	assert.Contains(t, kernels, cases)
	processors := row("tested.md", "processors")
	assert.Contains(t, processors, cases)
	var emulated []string
	steps := regexp.MustCompile(`(?m)^(\S+) +(kernels|emulation) `).FindAllStringSubmatch(read("../.ci/steps"), -1)
	for _, m := range steps {
		name, version, _ := strings.Cut(m[1], "-")
		switch {
		case m[2] == "emulation" && version == "kernel":
			emulated = append(emulated, name)
		case version != "random" && version != "":
			assert.Contains(t, linux, version, m[1])
			assert.Contains(t, kernels, version, m[1])
		}
	}
	require.ElementsMatch(t, []string{"arm64", "s390x"}, emulated)
	on := step[strings.Index(step, "\non_processor() {"):]
	on = on[:strings.Index(on, "\n}\n")]
	arm := row("../README.md", "Linux, arm64")
	assert.Contains(t, arm, fmt.Sprintf("these %d cases", n))
	requests := regexp.MustCompile(`the requests to (.*?),? and with`).FindStringSubmatch(arm)
	require.NotNil(t, requests)
	for name, path := range map[string]string{"nftables": "nft/dataplane", "iptables": "iptables/dataplane",
		"conntrack": "./conntrack", "IPVS": "ipvs/dataplane"} {
		assert.Equal(t, strings.Contains(on, path), strings.Contains(requests[1], name), name)
	}
	assert.Contains(t, row("../README.md", "Linux, s390x"), "as on arm64")
	for _, processor := range emulated {
		assert.Contains(t, processors, processor)
	}
}
