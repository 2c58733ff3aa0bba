package ci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// .ci/deep notes which parts have passed whole, and on what: the same content has the same name in any commit, and what
// is not committed has none. With other flags for the tests a step shows less.
func TestPartsThatHavePassedAreNoted(t *testing.T) {
	git := need.Program(t, "git")
	r := newRunner(t, "a one - first\nb one - second\nc two - third\n", `[ ! -e "fails-$1" ]`)
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), git, args...)
		cmd.Dir = r.dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a",
			"GIT_COMMITTER_EMAIL=a@example.com", "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "git %v: %s", args, out)
		return string(out)
	}
	commit := func() {
		run("add", "-A")
		run("commit", "-qm", "some")
	}
	noted := func() (lines []string) {
		text, err := os.ReadFile(filepath.Join(r.dir, ".ci", "proven"))
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); fields[0] != "#" {
				lines = append(lines, fields[0]+" "+fields[1])
			}
		}
		return lines
	}
	content := func() string {
		out, err := exec.CommandContext(t.Context(), filepath.Join(r.dir, ".ci", "content")).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	r.write(".ci/proven", "# a comment\n")
	assert.Contains(t, r.deep().out, "Not noted", "there is no repository")
	run("init", "-q")
	commit()
	first := content()

	r.deep("a")
	assert.Empty(t, noted(), "half a part")
	r.env = append(r.env, "GOFLAGS=-skip=.")
	assert.Contains(t, r.deep("one").out, "Not noted in .ci/proven: GOFLAGS or FUZZTIME is set")
	assert.Empty(t, noted())
	r.env = append(r.env, "GOFLAGS=")
	r.deep("one")
	assert.Equal(t, []string{"one " + first}, noted())
	commit()
	assert.Equal(t, first, content(), "the file itself does not count")
	r.deep()
	assert.Equal(t, []string{"one " + first, "two " + first}, noted())

	r.write("other", "")
	assert.Contains(t, r.deep().out, "Not noted in .ci/proven: not everything is committed")
	r.write("fails-c", "")
	commit()
	second := content()
	assert.NotEqual(t, first, second)
	r.deep()
	assert.Equal(t, []string{"two " + first, "one " + second}, noted(), "only what has passed")
}
