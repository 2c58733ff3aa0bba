package need_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// recorder stands in for a test and notes how it would have ended.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.end = "failed: " + fmt.Sprintf(format, args...)
}

func (r *recorder) Skipf(format string, args ...any) {
	r.end = "skipped: " + fmt.Sprintf(format, args...)
}

func TestThat(t *testing.T) {
	for _, tc := range []struct {
		name    string
		require string
		ok      bool
		end     string
	}{
		{"what is there lets the test go on", "1", true, ""},
		{"what is missing skips", "", false, "skipped: needs a unicorn"},
		{"what is missing fails where everything is required", "1", false,
			"failed: needs a unicorn, and KPL_REQUIRE=1 does not allow skipping"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("KPL_REQUIRE", tc.require)
			r := &recorder{}
			need.That(r, tc.ok, "a unicorn")
			assert.Equal(t, tc.end, r.end)
		})
	}
}

func (r *recorder) Skip(args ...any) { r.end = "skipped: " + fmt.Sprint(args...) }

// Tests that only a release has to pass are left out elsewhere, also with KPL_REQUIRE=1.
func TestDeep(t *testing.T) {
	t.Setenv("KPL_REQUIRE", "1")
	for value, end := range map[string]string{"": "skipped: only before a release: KPL_DEEP=1 is not set", "1": ""} {
		t.Setenv("KPL_DEEP", value)
		r := &recorder{}
		need.Deep(r)
		assert.Equal(t, end, r.end)
		assert.Equal(t, value == "1", need.IsDeep())
	}
}

func TestProgram(t *testing.T) {
	t.Setenv("KPL_REQUIRE", "")
	r := &recorder{}
	need.Program(r, "kpl-no-such-program")
	assert.Equal(t, "skipped: needs the program kpl-no-such-program", r.end)

	r = &recorder{}
	assert.NotEmpty(t, need.Program(r, "go"))
	assert.Empty(t, r.end)
}
