package main

import (
	"encoding/json"
	"go/version"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is built is what is copied, and what is copied is what is started; Go is as new as the module needs.
func TestTheDockerfilesFitTogether(t *testing.T) {
	module, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	required := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(module))
	require.NotNil(t, required)
	for file, goos := range map[string]string{"Dockerfile": "linux", "Dockerfile.windows": "windows"} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			find := func(pattern string) string {
				t.Helper()
				found := regexp.MustCompile(`(?m)`+pattern).FindAllStringSubmatch(string(data), -1)
				require.Len(t, found, 1, pattern)
				return found[0][1]
			}
			built := find(`^RUN .*go build .* -o (\S+) \./examples/kube-proxy$`)
			copied := find(`^COPY --from=build ` + regexp.QuoteMeta(built) + ` (\S+)$`)
			var entrypoint []string
			require.NoError(t, json.Unmarshal([]byte(find(`^ENTRYPOINT (.*)$`)), &entrypoint))
			require.Len(t, entrypoint, 1)
			assert.Equal(t, goos == "windows", strings.HasSuffix(built, ".exe"))
			assert.Equal(t, goos == "windows",
				strings.Contains(string(data), "GOOS=windows GOARCH=$TARGETARCH go build"))
			if goos == "windows" {
				// The image's root is in PATH, at a place that is not the same everywhere: so there is no directory.
				assert.Equal(t, "/", path.Dir(copied))
				copied = path.Base(copied)
				assert.Contains(t, string(data), `ENV PATH="C:\Windows\system32;`, "not that of the system it is built on")
			}
			assert.Equal(t, copied, entrypoint[0])
			if goos == "linux" {
				tool := find(`^RUN .*go build .* -o (\S+) \./examples/print-state$`)
				assert.Equal(t, "/usr/local/bin/print-state", find(`^COPY --from=build `+regexp.QuoteMeta(tool)+` (\S+)$`))
			}
			builder := find(`^FROM .*golang:([0-9.]+) AS build$`)
			assert.GreaterOrEqual(t, version.Compare("go"+builder, "go"+required[1]), 0, "go.mod requires %s",
				required[1])
		})
	}
}
