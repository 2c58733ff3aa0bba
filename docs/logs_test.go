package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryLogLineIsExplained: docs/operate/logs.md has every message that the library logs, and no other.
func TestEveryLogLineIsExplained(t *testing.T) {
	page, err := os.ReadFile("operate/logs.md")
	require.NoError(t, err)
	explained := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if message, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` |"); ok && strings.HasPrefix(line, "| `") {
			explained[message] = true
		}
	}
	logged := logMessages(t, "..")
	require.NotEmpty(t, logged)
	for message, where := range logged {
		assert.True(t, explained[message], "%s logs what docs/operate/logs.md does not explain: %s", where, message)
	}
	for message := range explained {
		assert.Contains(t, logged, message, "docs/operate/logs.md explains what nothing logs")
	}
}

// logMessages returns the messages that the library logs, with the place of one of the calls.
func logMessages(t *testing.T, root string) map[string]string {
	messages := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && (name == "cmd" || name == "examples" || name == "testing" || name == "testdata" || name == ".git"):
			return filepath.SkipDir
		case d.IsDir() && (strings.HasPrefix(name, "test") || name == "backendtest"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if message := messageOf(call); message != "" {
				messages[message] = fset.Position(call.Pos()).String()
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	return messages
}

// messageOf returns the message of a call of logr.Logger.Info or Error.
func messageOf(call *ast.CallExpr) string {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if of, ok := method.X.(*ast.Ident); ok && (of.Name == "http" || of.Name == "status") {
		return "" // answers, not logs
	}
	switch {
	case method.Sel.Name == "Info" && len(call.Args) > 0:
		return literal(call.Args[0])
	case method.Sel.Name == "Error" && len(call.Args) > 1:
		return literal(call.Args[1])
	}
	return ""
}

// literal returns the text of a string literal, or of several that are added.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

// TestTheLogLinesOfTroubleshootingExist: what troubleshooting.md tells people to look for in the log is logged.
func TestTheLogLinesOfTroubleshootingExist(t *testing.T) {
	page, err := os.ReadFile("operate/troubleshooting.md")
	require.NoError(t, err)
	logged := logMessages(t, "..")
	found := 0
	for _, quoted := range regexp.MustCompile("`([A-Z][a-z]+ [^`=]*)`").FindAllStringSubmatch(
		strings.Join(strings.Fields(string(page)), " "), -1) {
		start := strings.TrimSuffix(strings.TrimSuffix(quoted[1], "..."), " ")
		ok := false
		for message := range logged {
			ok = ok || strings.HasPrefix(message, start)
		}
		assert.True(t, ok, "nothing logs %q", quoted[1])
		found++
	}
	assert.Greater(t, found, 5)
}
