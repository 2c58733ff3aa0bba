package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *#* *$`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// markdown returns the pages of the repository.
func markdown(t *testing.T) []string {
	var pages []string
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "dist" || d.Name() == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			pages = append(pages, path)
		}
		return nil
	})
	require.NoError(t, err)
	return pages
}

// TestLinks: what pages of this repository link to in it exists, headings included.
func TestLinks(t *testing.T) {
	anchors := map[string][]string{}
	pages := markdown(t)
	require.NotEmpty(t, pages)
	n := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		text = code.ReplaceAll(fence.ReplaceAll(text, nil), nil)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			n++
			target, err := url.Parse(m[1])
			if !assert.NoError(t, err, "%s: %s", page, m[1]) || target.IsAbs() {
				continue // elsewhere: a test should not depend on the network
			}
			path := page
			if target.Path != "" {
				path = filepath.Join(filepath.Dir(page), filepath.FromSlash(target.Path))
			}
			if _, err := os.Stat(path); !assert.NoError(t, err, "%s links to %s", page, m[1]) || target.Fragment == "" {
				continue
			}
			if anchors[path] == nil {
				anchors[path] = anchorsOf(t, path)
			}
			assert.Contains(t, anchors[path], target.Fragment, "%s links to %s", page, m[1])
		}
	}
	assert.Greater(t, n, 50)
}

// anchorsOf returns the anchors that a forge makes of a page's headings.
func anchorsOf(t *testing.T, path string) []string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	anchors := []string{}
	seen := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
		a := anchor(m[1])
		if n := seen[a]; n > 0 {
			anchors = append(anchors, a+"-"+string(rune('0'+n)))
		} else {
			anchors = append(anchors, a)
		}
		seen[a]++
	}
	return anchors
}

// anchor is how forges turn a heading into an anchor: lower case, without signs, with a hyphen for each space.
func anchor(heading string) string {
	heading = linked.ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestAnchor(t *testing.T) {
	for heading, want := range map[string]string{
		"Where we differ from upstream, and why": "where-we-differ-from-upstream-and-why",
		"What is `left`":                         "what-is-left",
		"[A link](x.md), S1":                     "a-link-s1",
		"k8s.io's  own":                          "k8sios--own",
	} {
		assert.Equal(t, want, anchor(heading))
	}
}

// TestEveryPackageHasAnExample: each package that a program imports shows how.
func TestEveryPackageHasAnExample(t *testing.T) {
	packages, examples := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			private := slices.Contains([]string{"internal", "cmd", "examples", "testdata", ".git", "docs", "dist"}, d.Name())
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			otherModule := err == nil && path != ".."
			if private || otherModule || path == filepath.Join("..", "remote", "v1") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		folder := filepath.Dir(path)
		if !strings.HasSuffix(path, "_test.go") {
			packages[folder] = true
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, name := range functions(file) {
			examples[folder] = examples[folder] || strings.HasPrefix(name, "Example")
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, packages)
	for folder := range packages {
		assert.True(t, examples[folder], "%s has no Example", folder)
	}
}

func functions(file *ast.File) []string {
	var names []string
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			names = append(names, f.Name.Name)
		}
	}
	return names
}
