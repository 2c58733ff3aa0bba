package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Each feature of a report's table names cases that a program is tried with, none of them a note.
func TestServiceFeaturesNameCases(t *testing.T) {
	names := map[string]bool{}
	for _, f := range report.ServiceFeatures() {
		assert.False(t, names[f.Name], "%s is there twice", f.Name)
		names[f.Name] = true
		for _, name := range f.Cases {
			c := caseNamed(t, name)
			assert.False(t, c.stepwise, "%s: no program is tried with %q", f.Name, name)
			assert.NotEqual(t, report.Note, c.profile().Profile, "%s: %q", f.Name, name)
		}
	}
}

// The list of cases that tells old reports from new ones is up to date. FAKEMODEL_UPDATE=1 makes it anew: whoever adds
// a case after a release raises report.SuiteVersion as well.
func TestTheListOfCases(t *testing.T) {
	var names []string
	for _, c := range slices.Concat(cases(), programCases()) {
		if !c.stepwise {
			names = append(names, c.name+"\n")
		}
	}
	slices.Sort(names)
	fm.Golden(t, "report/cases.txt", strings.Join(names, ""))
}
