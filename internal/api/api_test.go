// Package api holds the library to what VERSIONING.md promises, and its exported names to being documented. It has
// tests only.
//
// The file api.txt has the exported names of all packages as of the last release. A name that has gone since, or has
// another type, breaks somebody: the test fails until CHANGELOG.md says so, under "Incompatible changes" of what is not
// released yet. New names break nobody and need not be recorded; .ci/release does that:
//
//	KPL_API=record go test ./internal/api
package api

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const recorded = "api.txt"

func TestNothingBreaksUnsaid(t *testing.T) {
	now, err := surface("../..")
	require.NoError(t, err)
	require.NotEmpty(t, now)
	if os.Getenv("KPL_API") == "record" {
		require.NoError(t, os.WriteFile(recorded, []byte(strings.Join(now, "\n")+"\n"), 0o644))
		return
	}
	before, err := os.ReadFile(recorded)
	require.NoError(t, err)
	changelog, err := os.ReadFile("../../CHANGELOG.md")
	require.NoError(t, err)
	was := strings.Split(strings.TrimSpace(string(before)), "\n")
	for _, line := range was {
		assert.True(t, !isStable(line) || slices.Contains(now, line), "gone or changed, and stable "+
			"(VERSIONING.md):\n%s", line)
	}
	for _, line := range unsaid(was, now, string(changelog)) {
		t.Errorf("gone or changed since the last release, and not among the incompatible changes in CHANGELOG.md as "+
			"`%s`:\n%s",
			nameOf(line), line)
	}
}

// isStable reports whether a line is about a package that VERSIONING.md calls stable.
func isStable(line string) bool {
	folder, _, _ := strings.Cut(line, ": ")
	return slices.Contains([]string{".", "model", "sink", "localstate", "watch", "diffstore"}, folder)
}

func TestStableFoldersAreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../VERSIONING.md")
	require.NoError(t, err)
	row := regexp.MustCompile(`(?m)^\| (.*) \| \*\*stable\*\*`).FindStringSubmatch(string(text))
	require.NotNil(t, row)
	for folder := range strings.SplitSeq(row[1], ", ") {
		folder = strings.Trim(folder, "`/")
		assert.True(t, isStable(cmp.Or(folder, ".")+": func F()"), folder)
	}
	assert.Equal(t, 6, strings.Count(row[1], ",")+1)
	assert.False(t, isStable("sink/oracle: func F()"))
}

// unsaid returns the lines that were there before, are not now, and that the changelog does not announce.
func unsaid(before, now []string, changelog string) []string {
	section := incompatible(changelog)
	return slices.DeleteFunc(slices.Clone(before), func(line string) bool {
		if slices.Contains(now, line) {
			return true
		}
		name := nameOf(line)
		for name != "" {
			if strings.Contains(section, "`"+name+"`") {
				return true
			}
			i := strings.LastIndex(name, ".") // the type of a field or method
			name = name[:max(i, 0)]
		}
		return false
	})
}

// incompatible returns what the changelog says of incompatible changes that are not released yet.
func incompatible(changelog string) string {
	_, unreleased, _ := strings.Cut(changelog, "\n## Unreleased\n")
	unreleased, _, _ = strings.Cut(unreleased, "\n## ")
	_, section, _ := strings.Cut(unreleased, "\n### Incompatible changes\n")
	section, _, _ = strings.Cut(section, "\n### ")
	return section
}

var (
	method = regexp.MustCompile(`^method \(\*?(\w+)[^)]*\) (\w+)`)
	field  = regexp.MustCompile(`^type (\w+).* struct, (?:embedded \*?)?([\w.]+)`)
	other  = regexp.MustCompile(`^(?:type|func|const|var) (\w+)`)
)

// nameOf returns the name of what a line is about, as a changelog has it: "sink.Sink", "model.Endpoint.Port".
func nameOf(line string) string {
	folder, line, _ := strings.Cut(line, ": ")
	names := []string{filepath.Base(folder)}
	if folder == "." {
		names[0] = "kubeproxy"
	}
	for _, kind := range []*regexp.Regexp{method, field, other} {
		if m := kind.FindStringSubmatch(line); m != nil {
			return strings.Join(append(names, m[1:]...), ".")
		}
	}
	return ""
}

func TestSurface(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("p/p.go", `package p
import "context"
type S struct { A, b int; *T; F func(name string) error }
type T struct{}
type Alias = T
type Set[K comparable] map[K]bool
type I interface { Do(ctx context.Context, n ...int) (ok bool, err error); T }
type small uint8
const ( One small = iota; Two; three )
const Four = 4
var V, w error
func (s *S) M(a, b int) {}
func (s small) M() {}
func New[K comparable](k K) (s *S, err error) { return nil, nil }
func hidden() {}
`)
	write("p/p_linux.go", "package p\nfunc Linux() {}\n")
	write("p/p_test.go", "package p\nfunc Test() {}\n")
	write("p/internal/i.go", "package internal\nfunc Hidden() {}\n")
	write("examples/e.go", "package e\nfunc Hidden() {}\n")
	write("cmd/main.go", "package main\nfunc Hidden() {}\n")
	got, err := surface(root)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"p: const Four",
		"p: const One small",
		"p: const Two small",
		"p: func Linux() (linux)",
		"p: func New[comparable](K) (*S, error)",
		"p: method (*S) M(int, int)",
		"p: type Alias = T",
		"p: type I interface { Do(context.Context, ...int) (bool, error); T }",
		"p: type S struct",
		"p: type S struct, A int",
		"p: type S struct, F func(string) error",
		"p: type S struct, embedded *T",
		"p: type Set[comparable] map[K]bool",
		"p: type T struct",
		"p: var V error",
	}, got)
}

func TestUnsaid(t *testing.T) {
	before := []string{"sink: type Sink interface { Sync() error }", "model: type Endpoint struct, Port PortName",
		"model: method (*Endpoint) Key() EndpointKey", ".: func Run(int)"}
	for name, tc := range map[string]struct {
		now       []string
		changelog string
		want      []string
	}{
		"nothing has changed":    {before, "", []string{}},
		"new names break nobody": {append([]string{"sink: func New()"}, before...), "", []string{}},
		"a method more, an unsaid": {append([]string{"sink: type Sink interface { More(); Sync() error }"},
			before[1:]...), "", before[:1]},
		"all gone": {nil, "", before},
		"all gone, an old release": {nil, "\n## Unreleased\n\n## 0.1\n\n### Incompatible changes\n- `sink.Sink`\n",
			before},
		"all gone, another section": {nil, "\n## Unreleased\n\n### Added\n- `sink.Sink`\n", before},
		"all gone, some of it said": {
			nil,
			"# Changelog\n\n## Unreleased\n\n### Incompatible changes\n- `sink.Sink` has more.\n- `model.Endpoint` has " +
				"gone.\n\n### Added\n- `kubeproxy.Run`\n",
			before[3:],
		},
		"a field is not its type": {nil,
			"\n## Unreleased\n\n### Incompatible changes\n- `model.Endpoint.Port`, `sink.Sink`, `kubeproxy.Run`\n",
			before[2:3]},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, unsaid(before, tc.now, tc.changelog)) })
	}
}
