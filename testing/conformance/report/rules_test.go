package report_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

func TestRuleList(t *testing.T) {
	assert.Equal(t, []string{"S25", "S27", "S36a"}, report.RuleList("S25, S27,S36a"))
	assert.Empty(t, report.RuleList(""))
}
