package need_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// everywhere are the programs that every machine has on which go test runs.
var everywhere = map[string]bool{"go": true, "sh": true, "cat": true}

// told are the files whose program is an argument, by path.
var told = map[string]string{
	"testing/need/need.go":                                    "this package looks for programs",
	"testing/need/need_test.go":                               "asks for a program that no machine has",
	"testing/need/example_test.go":                            "asks for a program that no machine has",
	"testing/conformance/internal/mynft/mynft.go":             "a backend to read; its tests ask for nft",
	"testing/integration/cluster/program.go":                  "runs what Program has found",
	"testing/integration/apiserver/node_linux_test.go":        "runs what Program has found",
	"testing/integration/apiserver/kubectl_test.go":           "runs what Program has found",
	"testing/integration/apiserver/serviceproxy_test.go":      "runs what Program has found",
	"testing/integration/e2e/probes_linux_test.go":            "runs kubectl, which newRecipe has asked for",
	"testing/integration/dropin/program_linux_test.go":        "runs what it has built, or Program has found",
	"testing/integration/benchmarks/sidebyside_linux_test.go": "runs what it has built",
	"testing/integration/benchmarks/brain_linux_test.go":      "runs what it has built",
	"testing/integration/e2e/cluster_linux.go":                "runs itself; its test asks for what else it runs",
	"testing/integration/e2e/cluster/main_linux.go":           "runs nsenter, which its test asks for",
	"testing/integration/e2e/node_linux.go":                   "runs itself; its test asks for what else it runs",
	"testing/integration/e2e/init_linux.go":                   "runs itself; its test asks for what else it runs",
}

// TestEveryProgramIsAskedFor: a test that runs a program has asked for it, so that it skips where the program is
// missing, and says which package has it.
func TestEveryProgramIsAskedFor(t *testing.T) {
	root := filepath.Join("..", "..")
	used := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		ofTests := strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "testing/") ||
			strings.HasPrefix(name, "internal/testkit/") || strings.HasPrefix(name, "backends/internal/backendtest/")
		if d.IsDir() || filepath.Ext(name) != ".go" || !ofTests {
			return nil
		}
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		found := unasked(t, name, string(source))
		if told[name] != "" {
			used[name] = len(found) > 0
			return nil
		}
		for _, f := range found {
			t.Error(f)
		}
		return nil
	})
	require.NoError(t, err)
	for name, reason := range told {
		assert.True(t, used[name], "%s (%s) needs no exception", name, reason)
	}
}

// unasked returns the places at which a file runs a program that was not asked for. What runs may be
//   - the result of need.Program or need.Find, or of filepath.Join, for what the test has built, in the same function,
//   - the test itself, a script of the repository ("./..."), or a program that is there everywhere.
//
// A name alone proves nothing, because another package may define it.
func unasked(t testing.TB, name, source string) (places []string) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, 0)
	require.NoError(t, err)
	add := func(n ast.Node) {
		text := source[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset]
		places = append(places, fmt.Sprintf("%v: %s is not asked for with testing/need, or is not in its list",
			fset.Position(n.Pos()), text))
	}
	for _, i := range file.Imports {
		if i.Path.Value == `"os/exec"` && i.Name != nil {
			add(i) // what follows knows it by its own name
		}
	}
	for _, decl := range file.Decls {
		paths := pathsIn(decl)
		called := map[ast.Expr]bool{}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				argument, runs := map[string]int{"exec.Command": 0, "exec.CommandContext": 1}[selector(n.Fun)]
				if f := selector(n.Fun); (f == "need.Program" || f == "need.Find") && !isKnown(n.Args[len(n.Args)-1]) {
					add(n.Args[len(n.Args)-1])
				}
				if runs {
					called[n.Fun] = true
					if program := n.Args[argument]; !mayRun(program, paths) {
						add(program)
					}
				}
			case *ast.CompositeLit:
				if selector(n.Type) == "exec.Cmd" {
					add(n.Type)
				}
			case *ast.SelectorExpr:
				switch selector(n) {
				case "exec.Command", "exec.CommandContext", "exec.LookPath", "os.StartProcess", "syscall.Exec":
					if !called[n] {
						add(n)
					}
				}
			}
			return true
		})
	}
	return places
}

// isKnown reports whether a program that is named literally is in the list of programs.
func isKnown(program ast.Expr) bool {
	lit, ok := program.(*ast.BasicLit)
	if !ok {
		return true // that is not seen here
	}
	name, err := strconv.Unquote(lit.Value)
	list, err2 := os.ReadFile("programs")
	return err == nil && err2 == nil && everywhere[name] ||
		strings.Contains("\n"+string(list), "\n"+filepath.Base(name)+" ")
}

// pathsIn returns the variables that are assigned the path of a program within a declaration.
func pathsIn(decl ast.Decl) map[string]bool {
	paths := map[string]bool{}
	ast.Inspect(decl, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok {
			for i, value := range assign.Rhs {
				if id, ok := assign.Lhs[i].(*ast.Ident); ok && isPath(value) {
					paths[id.Name] = true
				}
			}
		}
		return true
	})
	return paths
}

func mayRun(program ast.Expr, paths map[string]bool) bool {
	switch e := program.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return err == nil && (everywhere[text] || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../"))
	case *ast.Ident:
		return paths[e.Name]
	case *ast.IndexExpr:
		index, ok := e.Index.(*ast.BasicLit)
		return ok && selector(e.X) == "os.Args" && index.Value == "0"
	}
	return isPath(program)
}

// isPath reports whether an expression returns the path of a program.
func isPath(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f := selector(call.Fun)
	return f == "need.Program" || f == "need.Find" || f == "filepath.Join"
}

// selector returns the name of a function of another package, "exec.Command".
func selector(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

func TestProgramsThatAreNotAskedForAreFound(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		place      string // "" for none
	}{
		{"a name", `exec.Command("nft", "-f", "-")`, `"nft"`},
		{"a name, with a context", `exec.CommandContext(ctx, "nft")`, `"nft"`},
		{"a name that is put together", `exec.Command("iptables-" + variant)`, `"iptables-" + variant`},
		{"a name that somebody passes", `func(name string) { exec.Command(name) }("ip")`, "name"},
		{"a name in a variable", `name := "ip"; exec.Command(name)`, "name"},
		{"looking for it", `path, err := exec.LookPath("nft")`, "exec.LookPath"},
		{"without package exec", `os.StartProcess("/sbin/ip", nil, nil)`, "os.StartProcess"},
		{"a function by another name", `run := exec.Command; run("nft")`, "exec.Command"},
		{"without a function", `cmd := &exec.Cmd{Path: "nft"}`, "exec.Cmd"},
		{"asked for, but not in the list", `need.Find("unicorn")`, `"unicorn"`},
		{"asked for elsewhere", `need.Program(t, "nft"); exec.Command("nft")`, `"nft"`},
		{"asked for", `exec.Command(need.Program(t, "nft"), "-f", "-")`, ""},
		{"asked for before", `nft := need.Program(t, "nft"); func() { exec.CommandContext(ctx, nft) }()`, ""},
		{"asked for, of two", `a, b := need.Program(t, "ip"), need.Program(t, "gcc"); exec.Command(b)`, ""},
		{"used if it is there", `nft, found := need.Find("nft"); exec.Command(nft)`, ""},
		{"built by the test", `path := filepath.Join(dir, "mock"); exec.Command(path)`, ""},
		{"Go", `exec.Command("go", "list")`, ""},
		{"a shell", `exec.Command("sh", "-c", "true")`, ""},
		{"a script of the repository", `exec.Command("../../examples/script")`, ""},
		{"the test itself", `exec.Command(os.Args[0])`, ""},
		{"an argument of the test", `exec.Command(os.Args[1])`, "os.Args[1]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			places := unasked(t, "x_test.go", "package x\n\nfunc f() { "+tc.body+" }\n")
			if tc.place == "" {
				assert.Empty(t, places)
				return
			}
			require.Len(t, places, 1)
			assert.Contains(t, places[0], "x_test.go:3:")
			assert.Contains(t, places[0], ": "+tc.place+" is not asked for")
		})
	}
}

// The list names each program once, in order, so that it is easy to see what is in it.
func TestTheListOfProgramsIsSorted(t *testing.T) {
	text, err := os.ReadFile("programs")
	require.NoError(t, err)
	before := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		require.Len(t, fields, 2, line)
		assert.Less(t, before, fields[0])
		before = fields[0]
	}
}
