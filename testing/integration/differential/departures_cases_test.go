package differential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// file is the file with the case of a departure.
func (d departure) file() string {
	separator := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	return filepath.Join("testdata", "departures",
		strings.Join(strings.FieldsFunc(d.rule+" "+d.name, separator), "-")+".yaml")
}

// TestDepartures: in the case of an entry, both sides differ without the entry and agree with it. For an entry without
// a case, the test suggests one.
func TestDepartures(t *testing.T) {
	left, err := filepath.Glob("testdata/departures/*")
	require.NoError(t, err)
	for _, d := range allDepartures() {
		t.Run(d.rule+" "+d.name, func(t *testing.T) {
			left = slices.DeleteFunc(left, func(file string) bool { return file == d.file() })
			text, err := os.ReadFile(d.file())
			if errors.Is(err, os.ErrNotExist) {
				t.Fatalf("no case. Save this one as %s:\n%v", d.file(), suggest(t, d))
			}
			require.NoError(t, err)
			sc, err := parseScript(string(text))
			require.NoError(t, err)
			if !d.malformed {
				require.NoError(t, invalid(sc), "an API server would not let this happen")
			}
			_, differences := run(t.Context(), sc, allDepartures())
			require.Empty(t, differences, "with the entry both sides should agree")
			require.NotEmpty(t, differencesWithout(t, sc, d), "both sides agree without the entry: it is dead")
		})
	}
	require.Empty(t, left, "cases of departures that do not exist")
}

// differencesWithout returns how both sides differ in a script without a departure. It tries several times, because
// upstream's result may depend on the order of a map.
func differencesWithout(t *testing.T, sc script, d departure) []difference {
	for range 50 {
		if _, differences := run(t.Context(), sc, allDepartures().without(d.name)); len(differences) > 0 {
			return differences
		}
	}
	return nil
}

// suggest finds a case for a departure.
func suggest(t *testing.T, d departure) string {
	shows := func(sc script) bool {
		if !sc.setup.Malformed && invalid(sc) != nil || differencesWithout(t, sc, d) == nil {
			return false
		}
		_, with := run(t.Context(), sc, allDepartures())
		return len(with) == 0
	}
	for seed := range uint64(20000) {
		sc := randomScript(testkit.Seeded(seed), d.malformed)
		if _, differences := run(t.Context(), sc, allDepartures().without(d.name)); len(differences) > 0 && shows(sc) {
			sc = shrink(sc, shows)
			return fmt.Sprintf("%v\nwithout the entry:\n%v", sc, differencesWithout(t, sc, d))
		}
	}
	return "none was found: is it dead?"
}
