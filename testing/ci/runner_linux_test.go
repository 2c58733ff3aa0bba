package ci

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runner is a copy of the runner in a folder of its own, with other steps.
type runner struct {
	t   *testing.T
	dir string
	env []string // besides that of the test
}

// result is what a runner has printed, and its exit code.
type result struct {
	out  string
	code int
}

// newRunner copies the runner. steps are lines of .ci/steps, and step is what .ci/step does: its $1 is the step, and
// what follows is the test that runs again.
func newRunner(t *testing.T, steps, step string) *runner {
	t.Parallel()
	r := &runner{t: t, dir: t.TempDir(), env: []string{"GOFLAGS=", "FUZZTIME="}}
	for _, name := range []string{"run", "deep", "failed", "content"} {
		text, err := os.ReadFile(filepath.Join("..", "..", ".ci", name))
		require.NoError(t, err)
		r.write(".ci/"+name, string(text))
	}
	r.change("-s 0.2", "-s 0.01") // so that it sees the end of a step at once
	r.write(".ci/steps", steps)
	r.write(".ci/step", "#!/usr/bin/env bash\nset -eu\ncd \"$(dirname \"$0\")/..\"\n"+step)
	return r
}

// write creates an executable file.
func (r *runner) write(name, text string) {
	file := filepath.Join(r.dir, name)
	require.NoError(r.t, os.MkdirAll(filepath.Dir(file), 0o755))
	// A file that is open for writing cannot be executed, and a process that is just being started has it open, too.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(r.t, os.WriteFile(file, []byte(text), 0o755))
}

// change replaces a text of .ci/run.
func (r *runner) change(before, after string) {
	text, err := os.ReadFile(filepath.Join(r.dir, ".ci", "run"))
	require.NoError(r.t, err)
	require.Equal(r.t, 1, strings.Count(string(text), before), before)
	r.write(".ci/run", strings.Replace(string(text), before, after, 1))
}

func (r *runner) command(args ...string) *exec.Cmd { return r.script("run", args...) }

func (r *runner) script(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(r.dir, ".ci", name), args...)
	cmd.Env = append(os.Environ(), r.env...)
	return cmd
}

func (r *runner) run(args ...string) result {
	cmd := r.command(args...)
	out, err := cmd.CombinedOutput()
	return r.result(out, err)
}

func (r *runner) deep(args ...string) result {
	out, err := r.script("deep", args...).CombinedOutput()
	return r.result(out, err)
}

func (r *runner) result(out []byte, err error) result {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(r.t, err)
		return result{string(out), 0}
	}
	return result{string(out), exit.ExitCode()}
}

// last returns the last line.
func (r result) last() string {
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	return lines[len(lines)-1]
}

// report returns what is printed after all steps.
func (r result) report() string {
	_, report, _ := strings.Cut(r.out, "=== time\n")
	return report
}

func (r result) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		assert.Contains(t, r.report(), text)
	}
}

func TestAllStepsPass(t *testing.T) {
	r := newRunner(t, "# a comment\none change - first\n\ntwo change one second\n", `echo "this is $1"`).run()
	assert.Equal(t, 0, r.code)
	assert.Equal(t, "All checks passed.", r.last())
	assert.Contains(t, r.out, "=== one: first\nthis is one\n")
	assert.Contains(t, r.out, "=== two: second\nthis is two\n")
	assert.NotContains(t, r.report(), "what failed")
}

func TestAFailedStepEndsOnlyWhatNeedsIt(t *testing.T) {
	r := newRunner(t, `
one   change -         first
two   change one       of one
three change two       of two, and so of one
four  change -         last
five  change four,one  of both
`, `
echo "$1 has run"
case $1 in
one) for i in {1..100}; do echo "line $i"; done; exit 1 ;;
four) echo "it breaks"; exit 1 ;;
esac`).run()
	assert.Equal(t, 1, r.code)
	assert.Equal(t, "FAILED: four one (again: .ci/run four one)", r.last())
	assert.Contains(t, r.out, "four has run")
	for _, name := range []string{"two", "three", "five"} {
		assert.NotContains(t, r.out, name+" has run")
	}
	r.has(t, "not run: two, because one failed", "not run: three, because two failed", "not run: five, because",
		"=== what failed in one: first\n", "    line 76\n", "    line 100\n",
		"=== what failed in four: last\n", "    it breaks\n", "failed: one\n", "failed: four\n")
	assert.NotContains(t, r.report(), "    line 75\n")
}

// The last line names the failed steps, whatever they print and however they end.
func TestStepsThatEndInOddWays(t *testing.T) {
	for _, tc := range []struct {
		name, step string
		has        []string
	}{
		{"without a word", `exit 1`, []string{"failed: odd\n"}},
		{"with another exit code", `exit 7`, []string{"failed: odd: exit code 7\n"}},
		{"by a signal", `kill -KILL $$`, []string{"failed: odd: exit code 137\n"}},
		{"with bytes that are no text", `printf 'a\0b\377\n--- FAIL: \0\n'; exit 1`, []string{"failed: odd\n"}},
		{"with bytes that are no text, for a name", `printf -- '--- FAIL: \377 (0.00s)\nFAIL\nFAIL\tp\377\n'; exit 1`,
			[]string{"failed: odd: \xff (p\xff)\n"}},
		{"in the middle of a line", `printf 'All checks passed.'; exit 1`, []string{"    All checks passed.\n"}},
		{"with a very long line", `head -c 1000000 /dev/zero | tr '\0' x; exit 1`,
			[]string{"    " + strings.Repeat("x", 400) + "\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunner(t, "odd change - what is odd\nafter change - goes on\n",
				`[ $1 = odd ] || exit 0`+"\n"+tc.step).run()
			assert.Equal(t, 1, r.code)
			assert.Equal(t, "FAILED: odd (again: .ci/run odd)", r.last())
			r.has(t, append(tc.has, "  after ")...)
		})
	}
}

func TestAStepThatHangsIsStopped(t *testing.T) {
	runner := newRunner(t, "hangs change - it\n", `printf -- '--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tp\n'; exec sleep 600`)
	runner.change("limit=3600", "limit=1")
	r := runner.run()
	assert.Equal(t, 1, r.code)
	assert.Equal(t, "FAILED: hangs (again: .ci/run hangs)", r.last())
	// This test may pass when it runs alone. But others have not run.
	r.has(t, "It has taken 1 s, and was stopped.", "failed: hangs: exit code 124\n", "failed: hangs: TestA (p)\n")
}

// The report names the tests that were not run because a program is missing.
func TestTheReportSaysWhatAStepHasNotRun(t *testing.T) {
	r := newRunner(t, "one change - it\n", `printf 'a\0b\nNOT RUN: no etcd\n'`).run()
	assert.Equal(t, 0, r.code)
	r.has(t, "NOT RUN: no etcd\n")
}

const tiers = `
one   change  -     first
two   change  one   second
three change  -     third
suite-a suite -     of a suite
suite-b suite suite-a another
other kernels -     of kernels
`

func TestStepsAreChosen(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		runs string
	}{
		{"all", nil, "one two three"},
		{"one, without what it needs", []string{"two"}, "two"},
		{"in the order of the call, each once", []string{"three", "one", "three"}, "three one"},
		{"from one on", []string{"--from", "two"}, "two three"},
		{"the last", []string{"--from", "three"}, "three"},
		{"all of the deep ones", []string{"deep"}, "suite-a suite-b other"},
		{"a part", []string{"deep", "suite"}, "suite-a suite-b"},
		{"a step of a part", []string{"deep", "suite-b"}, "suite-b"},
		{"a part and a step", []string{"deep", "kernels", "suite-b"}, "other suite-b"},
		{"from one on, deep", []string{"deep", "--from", "suite-b"}, "suite-b other"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runner := newRunner(t, tiers, `echo "$1" >>ran`)
			run := runner.run
			if len(tc.args) > 0 && tc.args[0] == "deep" {
				tc.args, run = tc.args[1:], runner.deep
			}
			r := run(tc.args...)
			assert.Equal(t, 0, r.code, r.out)
			ran, err := os.ReadFile(filepath.Join(runner.dir, "ran"))
			require.NoError(t, err)
			assert.Equal(t, tc.runs, strings.Join(strings.Fields(string(ran)), " "))
		})
	}
}

func TestTheListNamesAllSteps(t *testing.T) {
	runner := newRunner(t, tiers, `exit 1`)
	assert.Equal(t, result{"one           first\ntwo           second\nthree         third\n", 0}, runner.run("--list"))
	assert.Equal(t, result{`suite     suite-a       of a suite
suite     suite-b       another
kernels   other         of kernels
`, 0}, runner.deep("--list"))
}

func TestWrongCallsRunNothing(t *testing.T) {
	for _, tc := range []struct {
		name, steps string
		args        []string
		says        string
	}{
		{"an unknown step", tiers, []string{"one", "four"}, ".ci/run: no step four; .ci/run --list names the steps\n"},
		{"a pattern", tiers, []string{"--from", ".*"}, "no step .*;"},
		{"a step of the other tier", tiers, []string{"suite-a"}, "no step suite-a;"},
		{"a deep step that is none", tiers, []string{"--deep", "one"}, ".ci/deep: no step one; .ci/deep --list"},
		{"an unknown flag", tiers, []string{"--fast"}, "what is --fast;"},
		{"from nowhere", tiers, []string{"--from"}, "--from takes one step;"},
		{"from an unknown step", tiers, []string{"--from", "four"}, "no step four;"},
		{"a table without steps", "# nothing\n", nil, "no steps;"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runner := newRunner(t, tc.steps, `echo "has run"`)
			temporary := t.TempDir()
			runner.env = []string{"TMPDIR=" + temporary}
			r := runner.run(tc.args...)
			assert.Equal(t, 2, r.code)
			assert.Contains(t, r.out, tc.says)
			assert.NotContains(t, r.out, "has run")
			left, err := os.ReadDir(temporary)
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

func TestVariablesOfTheCallerAreIgnored(t *testing.T) {
	runner := newRunner(t, "one change - it\n", `echo "${KPL_JUDGE_MUTANTS-not set} ${KPL_EMPTY-not set} $OTHER"`)
	runner.env = []string{"KPL_JUDGE_MUTANTS=all", "KPL_EMPTY=", "OTHER=kept"}
	r := runner.run()
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.out, "not set not set kept\n")
	assert.Contains(t, r.out, "KPL_JUDGE_MUTANTS was set, and is ignored\n")
}

// open lets all processes of a runner hold a pipe open, as file descriptor 3, and returns a function that waits for the
// end of the last one.
func open(t *testing.T, cmd *exec.Cmd) (waitForTheLast func()) {
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { reader.Close(); writer.Close() })
	cmd.ExtraFiles = []*os.File{writer}
	return func() {
		require.NoError(t, writer.Close())
		require.NoError(t, reader.SetReadDeadline(time.Now().Add(time.Minute))) // only what fails takes so long
		_, err := io.ReadAll(reader)
		require.NoError(t, err, "a process is left")
	}
}

func TestWhatAStepLeavesBehindIsKilled(t *testing.T) {
	for _, tc := range []struct{ name, process string }{
		{"with the output open", `sleep 600 &`},
		{"without the environment", `env -i sleep 600 &`},
		{"in a process group of its own", `timeout 600 sleep 500 &`},
		{"in a process group of a shell's", `set -m; sleep 600 &`},
		{"although it does not want to", `bash -c 'trap "" TERM HUP; while :; do sleep 600; done' &`},
		{"although it makes others", `bash -c 'while :; do sleep 600; done' & disown`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := newRunner(t, "one change - it\ntwo change - another\n", tc.process+"\necho $1").command()
			waitForTheLast := open(t, cmd)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err)
			waitForTheLast()
			assert.Contains(t, string(out), "two\n")
			assert.Contains(t, string(out), "All checks passed.\n")
		})
	}
}

// timeout(1) sends its signal to its child, and then to the process group, which the child is in as well.
func likeTimeout(process int, signal syscall.Signal) error {
	return errors.Join(syscall.Kill(process, signal), syscall.Kill(-process, signal))
}

// stopped starts a runner, and kills it when it has printed texts, one after the other. It waits for the end of all
// processes.
func stopped(t *testing.T, cmd *exec.Cmd, kill func(process int) error, texts ...string) result {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	waitForTheLast := open(t, cmd)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, stdout.(*os.File).SetReadDeadline(time.Now().Add(time.Minute))) // only what fails takes so long
	require.NoError(t, cmd.Start())
	var out bytes.Buffer
	buffer := make([]byte, 1000)
	for _, text := range texts {
		for !strings.Contains(out.String(), text) {
			n, err := stdout.Read(buffer)
			require.NoError(t, err, out.String())
			out.Write(buffer[:n])
		}
	}
	require.NoError(t, kill(cmd.Process.Pid))
	_, err = io.Copy(&out, stdout)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	waitForTheLast()
	return result{out.String(), cmd.ProcessState.ExitCode()}
}

func TestASignalStopsTheRun(t *testing.T) {
	for _, tc := range []struct {
		name, step, prints string
		kill               func(process int, signal syscall.Signal) error
		signal             syscall.Signal
	}{
		{"of timeout", `trap 'echo tidied up; exit' TERM; begun; sleep 600 & wait`, "    tidied up\n", likeTimeout,
			syscall.SIGTERM},
		{"to the runner alone", `trap 'echo tidied up; exit' TERM; begun; sleep 600 & wait`, "    tidied up\n", syscall.Kill,
			syscall.SIGTERM},
		// The step's parent is a timeout, whose parent is the runner.
		{"and another one, while it ends", `
trap 'kill -TERM $(cut -d " " -f 4 /proc/$PPID/stat); echo tidied up; exit' TERM; begun; sleep 600 & wait`,
			"    tidied up\n", syscall.Kill, syscall.SIGTERM},
		{"of a terminal that is closed", `begun; sleep 600`, "    begun\n", syscall.Kill, syscall.SIGHUP},
		{"that the step ignores", `trap '' TERM; set -m; sleep 600 & begun; wait`, "    begun\n", likeTimeout,
			syscall.SIGTERM},
		{"that a process group within the step does not get",
			`timeout 600 bash -c 'trap "echo tidied up; exit" TERM; echo begun; sleep 600 & wait'`, "    tidied up\n",
			likeTimeout, syscall.SIGTERM},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := newRunner(t, "one change - it\ntwo change - in progress\nthree change - later\nfour change - last\n",
				"begun() { echo begun; }\n[ $1 = two ] || { echo $1 has run; exit; }\n"+tc.step).command()
			r := stopped(t, cmd, func(process int) error { return tc.kill(process, tc.signal) }, "begun\n")
			assert.Equal(t, 130, r.code)
			assert.Equal(t, "FAILED: two (again: .ci/run two)", r.last())
			r.has(t, "failed: two: it was stopped\n", tc.prints, "not run: three, because two was stopped\n",
				"not run: four, because two was stopped\n")
			assert.NotContains(t, r.out, "three has run")
		})
	}
}
