package docs_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// query is a PromQL expression of the dashboard or of an alerting rule, and the texts in which its labels appear.
type query struct {
	name, expr string
	texts      []string
}

// dashboard is what tests look at of operate/dashboard.json.
type dashboard struct {
	Panels []struct {
		Title, Type string
		GridPos     position
		Datasource  dataSource
		Targets     []struct {
			Expr, LegendFormat string
			Datasource         dataSource
		}
	}
}

type (
	position   struct{ X, Y, W, H int }
	dataSource struct{ Type, UID string }
)

func readDashboard(t *testing.T) (d dashboard) {
	text, err := os.ReadFile("operate/dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// queries returns those of the dashboard and of the alerting rules.
func queries(t *testing.T) []query {
	var all []query
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			all = append(all, query{"panel " + p.Title, target.Expr, []string{target.LegendFormat}})
		}
	}
	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	text, err := os.ReadFile("operate/alerts.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &alerts))
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			q := query{name: "alert " + r.Alert, expr: r.Expr}
			for _, text := range r.Annotations {
				q.texts = append(q.texts, text)
			}
			all = append(all, q)
		}
	}
	return all
}

var (
	selector  = regexp.MustCompile(`\b(kubeproxy_\w+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	grouping  = regexp.MustCompile(`\b(?:by|on)\s*\(([^)]*)\)`)
	labelUsed = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}`)
)

// TestNoLabelIsMadeUp: the dashboard and the alerts select, group and show labels that the metrics have. Prometheus
// takes any label, and answers with nothing.
func TestNoLabelIsMadeUp(t *testing.T) {
	metrics := registered(t)
	all := queries(t)
	require.NotEmpty(t, all)
	for _, q := range all {
		labels := []string{"job", "instance"} // which Prometheus adds
		for _, m := range selector.FindAllStringSubmatch(q.expr, -1) {
			own := []string{"job", "instance"}
			if strings.HasSuffix(m[1], "_bucket") {
				own = append(own, "le")
			}
			own = append(own, metrics[metricOf(m[1])]...)
			for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
				assert.Contains(t, own, label[1], "%s: labels of %s", q.name, m[1])
			}
			labels = append(labels, own...)
		}
		groups := grouping.FindAllStringSubmatch(q.expr, -1)
		for _, m := range groups {
			for label := range strings.SplitSeq(m[1], ",") {
				assert.Contains(t, labels, strings.TrimSpace(label), "%s: %s", q.name, q.expr)
			}
		}
		// After an aggregation, a metric has only the labels that the aggregation names.
		if strings.Contains(q.expr, " by (") {
			labels = strings.FieldsFunc(groups[0][1], func(r rune) bool { return r == ',' || r == ' ' })
		}
		for _, text := range q.texts {
			for _, m := range labelUsed.FindAllStringSubmatch(text, -1) {
				assert.True(t, slices.Contains(labels, m[1]), "%s shows the label %s, which it does not have", q.name, m[1])
			}
		}
	}
}
