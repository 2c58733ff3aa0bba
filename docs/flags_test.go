package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// flagOfOurs matches the methods of the packages flag and pflag that define a flag.
var flagOfOurs = regexp.MustCompile(`^(\w*Var|\w*VarP|Func|BoolFunc|TextVar)$`)

// ourFlags returns the names of all flags that a program of the repository defines.
func ourFlags(t *testing.T) map[string]bool {
	t.Helper()
	flags := map[string]bool{"help": true}
	for _, folder := range []string{"cmd", "dropin", "internal", "examples", "testing/integration"} {
		err := filepath.WalkDir("../"+folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !flagOfOurs.MatchString(method.Sel.Name) {
					return true
				}
				for _, arg := range call.Args[:min(2, len(call.Args))] {
					if text, ok := arg.(*ast.BasicLit); ok && text.Kind == token.STRING {
						name, err := strconv.Unquote(text.Value)
						require.NoError(t, err, path)
						flags[name] = true
						break
					}
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	return flags
}

// TestFlagsExist: each flag that a page names is one of ours.
func TestFlagsExist(t *testing.T) {
	others := map[string]string{"run-service-proxy": "kube-router's", "allocate-node-cidrs": "kube-controller-manager's"}
	flags := ourFlags(t)
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	operate, err := filepath.Glob("operate/*.md")
	require.NoError(t, err)
	found := 0
	for _, page := range slices.Concat(pages, operate, []string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md"}) {
		// internal/program/brainflags registers this one by a variable: the plugin for kubectl, which see.md is about, has
		// its own name for it.
		flags["server"], flags["brain"] = page != "see.md", page == "see.md"
		data, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile("`--([a-z][a-z0-9-]*)").FindAllStringSubmatch(string(data), -1) {
			found++
			assert.True(t, flags[match[1]] || others[match[1]] != "", "%s: there is no flag --%s", page, match[1])
		}
	}
	assert.Greater(t, found, 100)
}
