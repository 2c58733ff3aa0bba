package ci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The failures that .ci/failed finds in the output of go test. A tab in these outputs is a tab.
func TestFailedTestsAreFoundInAnOutput(t *testing.T) {
	many := ""
	var all []string
	for i := range 500 {
		many += fmt.Sprintf("--- FAIL: Test%d (0.00s)\n", i)
		all = append(all, fmt.Sprintf("p Test%d", i))
	}
	for _, tc := range []struct {
		name, output string
		want         []string // a package and a test each
	}{
		{"nothing", "", nil},
		{"a package that passes", "ok  \tp\t0.1s\n", nil},
		{"a step without tests", "no such file\n", nil},
		{"a test", `--- FAIL: TestA (0.00s)
    a_test.go:5: wrong
FAIL
FAIL	example.com/p	0.01s
FAIL
`, []string{"example.com/p TestA"}},
		{"tests of two packages, some of the same name", `--- FAIL: TestA (0.00s)
FAIL
FAIL	p	0.01s
ok  	q	0.1s
--- FAIL: TestB (0.00s)
--- FAIL: TestA (1.50s)
FAIL
FAIL	r	0.01s
--- FAIL: TestC (0.00s)
FAIL
FAIL	s	0.01s
FAIL
`, []string{"p TestA", "r TestB", "r TestA", "s TestC"}},
		{"hundreds", many + "FAIL\nFAIL\tp\t1s\n", all},
		{"the innermost subtests", `--- FAIL: TestA (0.00s)
    --- PASS: TestA/b (0.00s)
    --- FAIL: TestA/c (0.00s)
        --- FAIL: TestA/c/d (0.00s)
        --- FAIL: TestA/c/e/f (0.00s)
    --- FAIL: TestA/cc (0.00s)
--- FAIL: TestAB (0.00s)
FAIL
FAIL	p	0.01s
`, []string{"p TestA/c/d", "p TestA/c/e/f", "p TestA/cc", "p TestAB"}},
		{"names with other characters", `--- FAIL: TestA (0.00s)
    --- FAIL: TestA/a_(b)[c]*"d"\x00 (0.00s)
    --- FAIL: TestA/ü|-> (0.00s)
FAIL
FAIL	p	0.01s
`, []string{`p TestA/a_(b)[c]*"d"\x00`, "p TestA/ü|->"}},
		{"lines of Windows", "--- FAIL: TestA (0.00s)\r\nFAIL\r\nFAIL\tp\r\n", []string{"p TestA"}},
		{"behind a line without an end", "dots ...--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tp\t1s\n", []string{"p TestA"}},
		{"behind bytes that are no text", "\x00\xff--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tp\t1s\n", []string{"p TestA"}},
		{"a benchmark", "--- FAIL: BenchmarkA\n    a_test.go:5: wrong\nFAIL\nFAIL\tp\t1s\n", []string{"p BenchmarkA"}},
		{"the same test in two runs", strings.Repeat("--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tp\t1s\nFAIL\n", 2),
			[]string{"p TestA"}},
		{"what a package that passes prints", `--- FAIL: TestX (0.00s)
FAIL
panic: of a program that is tested
ok  	p	0.01s
--- FAIL: TestA (0.00s)
FAIL
FAIL	q	0.01s
`, []string{"q TestA"}},
		{"what tests print that pass, without go", `--- FAIL: TestX (0.00s)
PASS
--- FAIL: TestA (0.00s)
FAIL
FAIL	q
`, []string{"q TestA"}},
		{"a program that does not compile", `# p [p.test]
a_test.go:5:1: syntax error
FAIL	p [build failed]
ok  	q	0.01s
FAIL	r [setup failed]
FAIL
`, []string{"p -", "r -"}},
		{"a panic of a test", `--- FAIL: TestFlaky (0.00s)
--- FAIL: TestA (0.00s)
panic: oops [recovered]
	panic: oops

goroutine 6 [running]:
FAIL	p	0.01s
FAIL
`, []string{"p -"}},
		{"a panic in the middle of a line", `--- FAIL: TestFlaky (0.00s)
dots ...panic: oops

goroutine 6 [running]:
FAIL	p	0.01s
FAIL
`, []string{"p -"}},
		{"the runtime gives up", "--- FAIL: TestA (0.00s)\nfatal error: all goroutines are asleep\nFAIL\nFAIL\tp\t1s\n",
			[]string{"p -"}},
		{"os.Exit after a test that failed", "--- FAIL: TestA (0.00s)\nfatal: no disk\nFAIL\tp\t1s\n", []string{"p -"}},
		{"os.Exit, in the second of two runs", `FAIL	p [build failed]
FAIL
--- FAIL: TestA (0.00s)
FAIL	p	0.01s
`, []string{"p -", "p -"}},
		{"no test that could be named", "FAIL\nFAIL\tp\t1s\n", []string{"p -"}},
		{"killed", "--- FAIL: TestA (0.00s)\nsignal: killed\nFAIL\tp\t1s\n", []string{"p -"}},
		{"it took too long", "--- FAIL: TestA (0.00s)\nFAIL\n*** Test killed with quit: ran too long (1s).\nFAIL\tp\t1s\n",
			[]string{"p -"}},
		{"a race in a test", `==================
WARNING: DATA RACE
Write at 0x00c000012345 by goroutine 7:
==================
--- FAIL: TestA (0.00s)
    testing.go:1617: race detected during execution of test
FAIL
FAIL	p	0.01s
`, []string{"p -"}},
		{"a failure outside of tests", "PASS\nleaked a goroutine\nFAIL\tp\t0.01s\n", []string{"p -"}},
		{"a failure outside of tests, of what prints failures", "--- FAIL: TestX (0.00s)\nPASS\nFAIL\tp\t0.01s\n",
			[]string{"p -"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "log")
			require.NoError(t, os.WriteFile(log, []byte(tc.output), 0o600))
			script := filepath.Join("..", "..", ".ci", "failed")
			out, err := exec.CommandContext(t.Context(), script, log).Output()
			require.NoError(t, err)
			want := ""
			for _, line := range tc.want {
				want += strings.Replace(line, " ", "\t", 1) + "\n"
			}
			assert.Equal(t, want, string(out))
		})
	}
}
