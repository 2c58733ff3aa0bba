package ci

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withPipe makes a pipe that steps can wait at.
func (r *runner) withPipe() *runner {
	require.NoError(r.t, syscall.Mkfifo(filepath.Join(r.dir, "pipe"), 0o600))
	r.change("limit=3600", "limit=60") // only what fails takes so long
	return r
}

// Steps that only compile run beside the others, in their order. Their output and result are reported like those of any
// other step.
func TestSomeStepsRunBesideTheOthers(t *testing.T) {
	r := newRunner(t, "one beside - first\ntwo change - second\nthree beside - third\nfour change - fourth\n", `
case $1 in
one) cat pipe ;;
two) echo of two >pipe ;;
three) exit 1 ;;
esac
echo "$1 has run"`).withPipe().run()
	assert.Equal(t, 1, r.code)
	assert.Equal(t, "FAILED: three (again: .ci/run three)", r.last())
	assert.Regexp(t, `(?s)=== two: second\ntwo has run\n.*=== four: fourth\nfour has run\n.*=== one: first\nof two\n`+
		`one has run\n.*=== three: third\n.*=== what failed in three: third\n`, r.out)
	for _, name := range []string{"one", "two", "three", "four"} {
		assert.Regexp(t, `\n +\d+ s  `+name+` `, "\n"+r.report())
	}
}

// A failed test of theirs runs again as well.
func TestAFlakyTestBesideTheOthersIsNamed(t *testing.T) {
	r := newRunner(t, "one change - first\ntwo beside - second\n", `
[ $1 = two ] || exit 0
[ $# = 1 ] || { for _ in 1 2 3; do echo "--- PASS: TestA (0.00s)"; done; exit 0; }
printf -- '--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tp\t0.1s\n'
exit 1`).run()
	assert.Equal(t, 0, r.code)
	assert.Equal(t, "All checks passed. Flaky tests: 1", r.last())
	r.has(t, "FLAKY: two: TestA (p)\n", "=== what failed in two: second\n    --- FAIL: TestA (0.00s)\n")
}

// Steps that are named on the command line are printed as they run.
func TestStepsThatAreNamedRunOneAfterTheOther(t *testing.T) {
	r := newRunner(t, "one beside - first\ntwo change - second\n", `echo "$1 has run"`).run("one", "two")
	assert.Equal(t, 0, r.code)
	assert.Regexp(t, `=== one: first\none has run\n    \(\d+ s\)\n=== two: second\n`, r.out)
}

// The process that runs steps beside the others may be killed: a step whose result it has not reported counts as not
// passed.
func TestStepsBesideTheOthersThatAreNeverHeardOfFail(t *testing.T) {
	r := newRunner(t, "one beside - first\ntwo change - second\nthree beside - third\n",
		`[ $1 != one ] || kill -KILL $(cut -d " " -f 4 /proc/$PPID/stat)`).run()
	assert.Equal(t, 130, r.code)
	assert.Equal(t, "FAILED: one (again: .ci/run one)", r.last())
	r.has(t, "failed: one: it was stopped\n", "not run: three, because one was stopped\n")
}

// A signal ends both, whether or not there is a step before the others.
func TestASignalStopsWhatRunsBesideTheOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		step, failed string
		texts        []string
	}{
		"during both":      {"echo x >pipe; sleep 600", "two", []string{"begun\n"}},
		"when one is left": {"echo x >pipe", "one", []string{"begun\n", " s)\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := newRunner(t, "one beside - first\ntwo change - second\nthree beside - third\n", `
[ $1 != two ] || { echo begun; `+tc.step+`; exit; }
[ $1 = three ] || { cat pipe >/dev/null; set -m; sleep 600 & wait; }`).withPipe().command()
			r := stopped(t, cmd, func(process int) error { return likeTimeout(process, syscall.SIGTERM) }, tc.texts...)
			assert.Equal(t, 130, r.code)
			assert.Equal(t, "FAILED: "+tc.failed+" (again: .ci/run "+tc.failed+")", r.last())
			r.has(t, "failed: "+tc.failed+": it was stopped\n", "not run: three, because "+tc.failed+" was stopped\n")
		})
	}
}
