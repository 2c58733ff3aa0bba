package cases

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Each feature of a report's table names cases that a program is tried with, none of them a note.
func TestServiceFeaturesNameCases(t *testing.T) {
	byName, names := casesByName(), map[string]bool{}
	for _, f := range report.ServiceFeatures() {
		assert.False(t, names[f.Name], "%s is there twice", f.Name)
		names[f.Name] = true
		for _, name := range f.Cases {
			c := byName[name]
			assert.NotNil(t, c.run, "%s: there is no case %q", f.Name, name)
			assert.False(t, c.Stepwise, "%s: no program is tried with %q", f.Name, name)
			assert.NotEqual(t, report.Note, c.Profile().Profile, "%s: %q", f.Name, name)
		}
	}
}

// The list of cases that tells old reports from new ones is up to date. FAKEMODEL_UPDATE=1 makes it anew: whoever adds
// a case after a release raises report.SuiteVersion as well.
func TestTheListOfCases(t *testing.T) {
	var names []string
	for _, c := range slices.Concat(All(), ForPrograms()) {
		if !c.Stepwise {
			names = append(names, c.Name+"\n")
		}
	}
	slices.Sort(names)
	fm.Golden(t, "../../report/cases.txt", strings.Join(names, ""))
}

// Each profile names an existing case: otherwise a renamed case would silently become core.
func TestProfilesNameCases(t *testing.T) {
	for name := range profiles() {
		assert.Contains(t, casesByName(), name)
	}
}

// A case whose rules of another program are not there tests nothing: CI must notice.
func TestAMissingVariantOfIPTablesFailsInCI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for required, fails := range map[string]bool{"": false, "1": true} {
		t.Setenv("KPL_REQUIRE", required)
		for _, variant := range hostPortsOf(80).variants {
			err := hostPortsOf(80).addChains(t.Context(), variant, model.IPv4)
			assert.Equal(t, fails, errors.Is(err, exec.ErrNotFound), "%s: %v", variant, err)
		}
	}
}

func casesByName() map[string]Case {
	byName := map[string]Case{}
	for _, c := range slices.Concat(All(), ForPrograms()) {
		byName[c.Name] = c
	}
	return byName
}
