package kubeproxy_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEachDependencyHasItsReason: docs/libraries.md says, for each module that go.mod requires directly, what it is for
// and which packages import it.
func TestEachDependencyHasItsReason(t *testing.T) {
	required := importers(t)
	page, err := os.ReadFile("docs/libraries.md")
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\| ([^|]*) \\|$")
	described := map[string]string{}
	for _, columns := range row.FindAllStringSubmatch(string(page), -1) {
		name, reason := columns[1], columns[2]
		assert.NotContains(t, described, name, "listed twice")
		assert.NotEmpty(t, strings.TrimSpace(reason), "%s has no reason", name)
		described[name] = columns[3]
	}
	for name, folders := range required {
		assert.Equal(t, folders, described[name], "what imports %s", name)
	}
	for name := range described {
		assert.Contains(t, required, name, "go.mod does not require it directly")
	}
}

// importers returns the modules that go.mod requires directly, and the folders whose packages import each, in the form
// of docs/libraries.md: importers that are for tests count only if there are no others.
func importers(t *testing.T) map[string]string {
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	require.NoError(t, err)
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	require.NoError(t, json.Unmarshal(out, &file))
	folders := map[string]map[string]bool{}
	for _, r := range file.Require {
		if !r.Indirect {
			folders[r.Path] = map[string]bool{}
		}
	}
	require.NotEmpty(t, folders)
	for _, goos := range []string{"linux", "windows", "darwin"} {
		for path, p := range list(t, goos) {
			folder, ours := strings.CutPrefix(path+"/", module+"/")
			if !ours || isForTests(folder) {
				continue
			}
			for _, imported := range p.Imports {
				if m := moduleOf(imported, folders); m != "" {
					folders[m]["`"+shorten(folder)+"`"] = true
				}
			}
		}
	}
	result := map[string]string{}
	for m, in := range folders {
		result[m] = strings.Join(slices.Sorted(maps.Keys(in)), ", ")
		if len(in) == 0 {
			result[m] = "tests"
		}
	}
	return result
}

// moduleOf returns the module that contains a package: the longest matching path.
func moduleOf[V any](imported string, modules map[string]V) string {
	longest := ""
	for m := range modules {
		if strings.HasPrefix(imported+"/", m+"/") && len(m) > len(longest) {
			longest = m
		}
	}
	return longest
}

// shorten returns the part of a folder that the table names: backends and internal packages one by one.
func shorten(folder string) string {
	parts := strings.Split(strings.TrimSuffix(folder, "/"), "/")
	switch {
	case parts[0] == "":
		return "/"
	case len(parts) > 2 && parts[0] == "internal" && (parts[1] == "kernel" || parts[1] == "program"):
		return strings.Join(parts[:3], "/")
	case len(parts) > 1 && (parts[0] == "backends" || parts[0] == "internal"):
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// The programs that are published have the newest client-go that the library is tested with, wherever they are built.
func TestProgramsAreBuiltWithTheNewestClientGo(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	newest := regexp.MustCompile(`(?m)^(v0\.\d+\.\d+)$`).FindStringSubmatch(read(".ci/client-go-versions"))
	require.NotNil(t, newest)
	programs := regexp.MustCompile(`(?m)^\tk8s\.io/(\S+) (v0\.[1-9]\d*\.\d+)$`).FindAllStringSubmatch(
		read("cmd/programs.mod"), -1)
	require.Greater(t, len(programs), 4)
	for _, m := range programs {
		assert.Equal(t, newest[1], m[2], "cmd/programs.mod, %s: run .ci/programs", m[1])
	}
	for _, path := range []string{".ci/release", "docs/kubeadm.md", "cmd/kube-proxy/Dockerfile",
		"testing/integration/dropin/program_linux_test.go", "testing/integration/cluster/build.go"} {
		assert.Contains(t, read(path), "-modfile=cmd/programs.mod", path)
	}
}
