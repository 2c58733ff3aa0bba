package ci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goTest is a step that runs go test, in the way of .ci/step.
const goTest = `shift; go test -vet=off "${@:-./...}"`

// module writes a module. files are the bodies of test functions and other code, by the name of the package.
func (r *runner) module(files map[string]string) {
	r.write("go.mod", "module example.com\n\ngo 1.24\n")
	for name, code := range files {
		r.write(name+"/"+name+"_test.go", `package `+name+`

import ("fmt"; "os"; "testing")

var _, _ = fmt.Print, os.Exit

// once reports whether it is called for the first time with a name.
func once(name string) bool {
	file, err := os.OpenFile("seen-"+name, os.O_CREATE|os.O_EXCL, 0o600)
	file.Close()
	return err == nil
}

`+code)
	}
}

const step = "tests change - go test\n"

// Each reason for which go test fails, in one run.
func TestOnlyTestsThatFailAloneAsWellHaveFailed(t *testing.T) {
	runner := newRunner(t, step+"after change - more\n", "[ $1 = tests ] || exit 0\n"+goTest)
	runner.module(map[string]string{
		"always": `
func TestSame(t *testing.T) { t.Error("always wrong") }
func TestOther(t *testing.T) {}
`,
		"once": `
func TestSame(t *testing.T) { if once("same") { t.Error("wrong once") } }
func TestNotOnlyItsSubtest(t *testing.T) {
	t.Run("sub", func(t *testing.T) { if once("sub") { t.Error("wrong in the subtest") } })
	t.Error("wrong around the subtest")
}
`,
		"panics":  `func TestPanics(t *testing.T) { var m map[int]int; m[1] = 2 }`,
		"exits":   `func TestFirst(t *testing.T) { t.Error("wrong") }; func TestThen(t *testing.T) { os.Exit(1) }`,
		"broken":  `func TestBroken(t *testing.T) { undefined() }`,
		"outside": `func TestMain(m *testing.M) { m.Run(); fmt.Println("leaked"); os.Exit(1) }; func TestA(t *testing.T) {}`,
		"passes":  `func TestPasses(t *testing.T) { fmt.Println("--- FAIL: TestNested (0.00s)\nFAIL") }`,
	})
	r := runner.run()
	r.out = regexp.MustCompile(`\b\d+\.\d+s\b`).ReplaceAllString(r.out, "0.00s") // a busy machine takes longer
	assert.Equal(t, 1, r.code)
	assert.Equal(t, "FAILED: tests (again: .ci/run tests)", r.last())
	r.has(t, "  after ", `
FLAKY: tests: TestSame (example.com/once)
        once_test.go:15: wrong once
failed: tests: TestSame (example.com/always)
        always_test.go:15: always wrong
failed: tests: example.com/broken
    # example.com/broken [example.com/broken.test]
    broken/broken_test.go:14:33: undefined: undefined
failed: tests: example.com/exits
`, "    --- FAIL: TestFirst (0.00s)\n        exits_test.go:14: wrong\n    FAIL\texample.com/exits\t0",
		"failed: tests: TestNotOnlyItsSubtest/sub (example.com/once)\n            once_test.go:17: wrong in the subtest\n",
		"failed: tests: example.com/outside\n    leaked\n    FAIL\texample.com/outside\t0",
		"failed: tests: example.com/panics\n    panic: assignment to entry in nil map [recovered, repanicked]\n")
	for _, reason := range []string{"always wrong", "wrong once", "wrong in the subtest", "leaked",
		"assignment to entry in nil map", "undefined: undefined", "--- FAIL: TestFirst"} {
		_, excerpts, found := strings.Cut(r.report(), "    its last lines:\n")
		assert.True(t, found)
		excerpts, _, found = strings.Cut(excerpts, "FLAKY: ")
		assert.True(t, found)
		assert.Contains(t, excerpts, reason)
	}
	assert.NotContains(t, r.report(), "TestNested")
	assert.Equal(t, 3, strings.Count(r.out, "failed and runs again, alone, three times\n"))
}

// Every one of these subtests fails when it runs for the first time, and must be found by its name.
func TestATestThatPassesAloneIsFlaky(t *testing.T) {
	runner := newRunner(t, step, goTest)
	runner.module(map[string]string{"names": `
func TestNames(t *testing.T) {
	for i, name := range []string{"", "(x|y) [z]*{2} ", "back\\slash \x00 ü", "$^.+?/b//", "twice", "twice"} {
		t.Run(name, func(t *testing.T) {
			t.Run("inner", func(t *testing.T) {
				if once(fmt.Sprint(i)) { t.Errorf("wrong once: %q", t.Name()) }
			})
		})
	}
}
func TestNamesAsWell(t *testing.T) { if !once("other") { t.Error("runs again") } }
`})
	r := runner.run()
	assert.Equal(t, 0, r.code)
	assert.Equal(t, "All checks passed. Flaky tests: 6", r.last())
	r.has(t, "tests          flaky\n", "=== what failed in tests: go test\n",
		`FLAKY: tests: TestNames/#00/inner (example.com/names)
                names_test.go:19: wrong once: "TestNames/#00/inner"
FLAKY: tests: TestNames/(x|y)_[z]*{2}_/inner (example.com/names)
                names_test.go:19: wrong once: "TestNames/(x|y)_[z]*{2}_/inner"
FLAKY: tests: TestNames/back\slash_\x00_ü/inner (example.com/names)
                names_test.go:19: wrong once: "TestNames/back\\slash_\\x00_ü/inner"
FLAKY: tests: TestNames/$^.+?/b///inner (example.com/names)
                names_test.go:19: wrong once: "TestNames/$^.+?/b///inner"
FLAKY: tests: TestNames/twice/inner (example.com/names)
                names_test.go:19: wrong once: "TestNames/twice/inner"
FLAKY: tests: TestNames/twice#01/inner (example.com/names)
                names_test.go:19: wrong once: "TestNames/twice#01/inner"
`)
	assert.NotContains(t, r.report(), "its last lines")
}

// The output of go test: TestA fails the first time, and then does what the case says.
func TestWhatRunsAgainMustPassThreeTimes(t *testing.T) {
	const pass, ok = "--- PASS: TestA (0.00s)\n", "PASS\nok  \tp\t0.1s\n"
	for _, tc := range []struct {
		name, output string
		code         string
		flaky        bool
	}{
		{"it does", strings.Repeat(pass, 3) + ok, "0", true},
		{"for each of two versions", strings.Repeat(strings.Repeat(pass, 3)+ok, 2), "0", true},
		{"in the middle of a line", strings.Repeat("dots ..."+pass, 3) + ok, "0", true},
		{"besides bytes that are no text", strings.Repeat("\\000\\377\n"+pass, 3) + ok, "0", true},
		{"it fails", "--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tp\t0.1s\n", "1", false},
		{"it fails the third time", strings.Repeat(pass, 2) + "--- FAIL: TestA (0.00s)\nFAIL\n", "1", false},
		{"it passes, but not the program", strings.Repeat(pass, 3) + "PASS\nleaked\nFAIL\tp\t0.1s\n", "1", false},
		{"it passes twice", strings.Repeat(pass, 2) + ok, "0", false},
		{"nothing runs", "testing: warning: no tests to run\n" + ok, "0", false},
		{"another test passes", strings.Repeat("--- PASS: TestA/b (0.00s)\n--- PASS: TestAB (0.00s)\n", 3) + ok, "0", false},
		{"it skips", strings.Repeat("--- SKIP: TestA (0.00s)\n", 3) + ok, "0", false},
		{"the step runs no single tests", "step: tests runs no single tests\n", "2", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runner := newRunner(t, step, `
[ $# -gt 1 ] || { printf -- '--- FAIL: TestA (0.00s)\n    wrong\nFAIL\nFAIL\tp\t0.1s\n'; exit 1; }
echo "$*" >again
printf -- '`+tc.output+`'
exit `+tc.code)
			r := runner.run()
			again, err := os.ReadFile(filepath.Join(runner.dir, "again"))
			require.NoError(t, err)
			assert.Equal(t, "tests p -run=^TestA$ -count=3 -failfast -v\n", string(again))
			r.has(t, "    --- FAIL: TestA (0.00s)\n        wrong\n")
			if tc.flaky {
				assert.Equal(t, 0, r.code)
				assert.Equal(t, "All checks passed. Flaky tests: 1", r.last())
			} else {
				assert.Equal(t, 1, r.code)
				r.has(t, "failed: tests: TestA (p)\n")
			}
		})
	}
}

func TestOfManyFailedTestsSomeRunAgain(t *testing.T) {
	r := newRunner(t, step, `
[ $# = 1 ] || { for i in 1 2 3; do echo "--- PASS: Test"; done; exit 1; }
for i in {1..300}; do echo "--- FAIL: Test$i (0.00s)"; done
printf 'FAIL\nFAIL\tp\t0.1s\n'
exit 1`).run()
	assert.Equal(t, 1, r.code)
	assert.Equal(t, "FAILED: tests (again: .ci/run tests)", r.last())
	assert.Equal(t, 8, strings.Count(r.out, " failed and runs again"))
	assert.Equal(t, 300, strings.Count(r.report(), "failed: tests: Test"))
	r.has(t, "failed: tests: Test8 (p)\n", "failed: tests: Test300 (p), not run again: 8 others had failed before\n")
}

// The report has what belongs to a failure, however far it is from the end, and nothing of what passes.
func TestTheReportShowsEachFailure(t *testing.T) {
	r := newRunner(t, step, `
[ $# = 1 ] || exit 1
printf 'panic: of a program that is tested\nok  \tv\t1s\n'
printf '# q [q.test]\nq_test.go:1:1: undefined: x\nok  \tw\t1s\n'
printf 'before\n--- FAIL: TestA\\b (0.00s)\n    wrong\nFAIL\nFAIL\tp\t1s\n'
printf 'panic: oops\n'; printf 'frame %s\n' {1..60}; printf 'FAIL\to\t1s\n'
printf -- '--- FAIL: TestA\\b (0.00s)\n    wrong here as well\nFAIL\nFAIL\tn\t1s\n'
printf 'FAIL\tq [build failed]\nFAIL\n'
exit 1`).run()
	frames := ""
	for i := range 39 {
		frames += fmt.Sprintf("    frame %d\n", i+1)
	}
	r.has(t, "=== what failed in tests: go test\n    its last lines:\n", `
    FAIL	q [build failed]
    FAIL
    before
    --- FAIL: TestA\b (0.00s)
        wrong
    panic: oops
`+frames+`    --- FAIL: TestA\b (0.00s)
        wrong here as well
    # q [q.test]
    q_test.go:1:1: undefined: x
failed: tests: TestA\b (p)
        wrong
failed: tests: o
    panic: oops
    frame 1
    frame 2
    frame 3
    frame 4
    frame 5
failed: tests: TestA\b (n)
        wrong here as well
failed: tests: q
    # q [q.test]
    q_test.go:1:1: undefined: x
FAILED: `)
}

// Failures of a step after its tests, and signals, are not flakiness.
func TestAnotherExitCodeIsNotFlakiness(t *testing.T) {
	r := newRunner(t, step, `[ $# = 1 ] || touch again
printf -- '--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tp\t0.1s\n'; kill -KILL $$`).run()
	assert.Equal(t, 1, r.code)
	r.has(t, "failed: tests: exit code 137\nfailed: tests: TestA (p)\nFAILED: ")
	assert.NotContains(t, r.out, "runs again")
}

// TestAStepThatRunsNoTestsRefusesOne calls the repository's own .ci/step, which would otherwise do all of it again.
func TestAStepThatRunsNoTestsRefusesOne(t *testing.T) {
	script := filepath.Join("..", "..", ".ci", "step")
	for _, tc := range []struct {
		name string
		args []string
		says string
	}{
		{"a linter", []string{"lint", "./model", "-run=^TestA$"}, "step: lint runs no single tests\n"},
		{"an unknown step", []string{"unicorns"}, "step: no step unicorns; .ci/run --list names them\n"},
		{"no step", nil, "step: no step ; .ci/run --list names them\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), script, tc.args...).CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, 2, exit.ExitCode())
			assert.Equal(t, tc.says, string(out))
		})
	}
}
