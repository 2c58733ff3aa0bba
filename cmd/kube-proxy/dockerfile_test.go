package main

import (
	"encoding/json"
	"go/version"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The Dockerfiles copy the program that they build and start the one that they copy, and use a Go version as new as the
// module needs.
func TestTheDockerfilesFitTogether(t *testing.T) {
	module, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	required := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(module))
	require.NotNil(t, required)
	for file, goos := range map[string]string{"Dockerfile": "linux", "Dockerfile.nftables": "linux",
		"Dockerfile.windows": "windows"} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			find := func(pattern string) string {
				t.Helper()
				found := regexp.MustCompile(`(?m)`+pattern).FindAllStringSubmatch(string(data), -1)
				require.Len(t, found, 1, pattern)
				return found[0][1]
			}
			built := find(`^RUN .*go build .* -o (\S+) \./cmd/kube-proxy$`)
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
			if file == "Dockerfile.nftables" {
				assert.Contains(t, string(data), "GOOS=linux GOARCH=$TARGETARCH go build")
				assert.Contains(t, string(data), "\nFROM scratch\n")
			}
			if file == "Dockerfile" {
				tool := find(`^RUN .*go build .* -o (\S+) \./cmd/kubectl-serviceproxy$`)
				assert.Equal(t, "/usr/local/bin/kubectl-serviceproxy",
					find(`^COPY --from=build `+regexp.QuoteMeta(tool)+` (\S+)$`))
			}
			builder := find(`^FROM .*golang:([0-9.]+) AS build$`)
			assert.GreaterOrEqual(t, version.Compare("go"+builder, "go"+required[1]), 0, "go.mod requires %s",
				required[1])
		})
	}
}

// There is no builder of images where the tests run. So each instruction is one that is known here, and what it refers
// to exists: the base images by name alone (those for Linux), the paths that are copied, the packages that are built,
// and the Debian packages of the programs that the proxy runs.
func TestEveryInstructionOfTheDockerfilesRefersToWhatExists(t *testing.T) {
	const root = "../.."
	programs, err := os.ReadFile(root + "/testing/need/programs")
	require.NoError(t, err)
	for _, file := range []string{"Dockerfile", "Dockerfile.nftables", "Dockerfile.windows"} {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		stages, used := map[string]bool{}, 0
		for line := range strings.Lines(string(data)) {
			if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) == "" {
				continue
			}
			instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			words := strings.Fields(rest)
			switch instruction {
			case "WORKDIR", "ENTRYPOINT", "ARG", "ENV", "USER":
			case "FROM":
				words = slices.DeleteFunc(words, func(word string) bool { return strings.HasPrefix(word, "--") })
				if file != "Dockerfile.windows" && words[0] != "scratch" {
					assert.Regexp(t, `^[a-z]+(:[a-z0-9.-]+|@sha256:[0-9a-f]{64})$`, words[0], "%s: no registry is named", file)
				}
				if len(words) == 3 {
					stages[words[2]] = true
				}
			case "COPY":
				if stage, ok := strings.CutPrefix(words[0], "--from="); ok {
					assert.True(t, stages[stage], "%s: %s", file, line)
					continue
				}
				for _, source := range words[:len(words)-1] {
					_, err := os.Stat(path.Join(root, source))
					assert.NoError(t, err, "%s: %s", file, line)
					used++
				}
			case "RUN":
				used += checkRun(t, root, rest, string(programs))
			default:
				assert.Fail(t, "an unknown instruction", "%s: %s", file, line)
			}
		}
		assert.Greater(t, used, 3, file)
	}
}

// checkRun checks the commands of one RUN, and returns how many it knows.
func checkRun(t *testing.T, root, commands, programs string) (known int) {
	for command := range strings.SplitSeq(commands, "&&") {
		words := strings.Fields(command)
		switch last := words[len(words)-1]; {
		case slices.Contains(words, "build"):
			main, err := os.ReadFile(path.Join(root, last, "main.go"))
			require.NoError(t, err, command)
			assert.Contains(t, string(main), "\nfunc main() {", command)
			assert.Contains(t, words, "-modfile=cmd/programs.mod", command)
		case strings.Contains(command, "apt-get install"):
			assert.Regexp(t, `(?m)^\S+ `+regexp.QuoteMeta(last)+`$`, programs, command)
		case strings.Join(words, " ") == "go mod download -modfile=cmd/programs.mod",
			strings.Join(words, " ") == "apt-get update", words[0] == "rm":
		default:
			assert.Fail(t, "an unknown command", command)
		}
		known++
	}
	return known
}
