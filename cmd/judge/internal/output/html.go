package output

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/semantics"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

//go:embed assets
var assets embed.FS

// HTML writes a self-contained page about one report or several side by side: the counts, latency charts if speed was
// measured, a matrix of all cases that can be filtered, and for each failure the packet's path, the observed result,
// the expected outcomes with their rules, and the objects. Everything is readable without JavaScript, which only adds a
// search.
//
// The page refers to docs/semantics.md, and quotes the rules that failures mention.
func HTML(w io.Writer, reports ...*report.Report) error {
	p, err := newPage(reports)
	if err != nil {
		return err
	}
	t, err := template.New("page.html").Funcs(template.FuncMap{
		"markdown": markdown, "class": class[report.Verdict], "answer": class[report.Answer],
	}).ParseFS(assets, "assets/page.html")
	if err == nil {
		_, err = t.Parse(chartsTemplate)
	}
	if err != nil {
		return err
	}
	return t.Execute(w, p)
}

// page is the data of the template.
type page struct {
	Policy        string
	Style, Script template.HTML
	Reports       []*report.Report
	Supports      []supportRow // empty for comparisons
	Groups        []group
	Details       []detail
	Rules         []ruleText
	Charts        *charts // nil without speed figures
	Several       bool
	Differences   bool // all reports are comparisons of two programs
	OwnTests      bool // all reports are of Kubernetes' own tests
}

// supportRow is a feature of Kubernetes, with what each report says of it.
type supportRow struct {
	report.ServiceFeature
	Cells []report.Support
}

// group has the cases of a profile or of a feature.
type group struct {
	Profile report.Profile
	Title   string
	Rows    []row
}

// row is a case with a cell for each report.
type row struct {
	Case    string
	Rules   []string
	Classes string // for filters
	Cells   []cell
}

// cell is the verdict of a case in one report; "" if the report does not have it.
type cell struct {
	Verdict report.Verdict
	ID      string // of the detail, "" if there is none
	Why     string
}

// detail is a result with failures or an explanation.
type detail struct {
	ID string
	report.Result
	Title string // of the report
}

type ruleText struct{ Rule, Text string }

// conclusion summarizes a profile of a report.
type conclusion struct {
	Name   report.Profile
	Result string
	report.Counts
}

// Conclusions lists the profiles of a report that have cases.
func (p page) Conclusions(r *report.Report) (list []conclusion) {
	for _, profile := range report.Profiles() {
		if c := r.Counts(profile); c.Total() > 0 {
			list = append(list, conclusion{profile, r.Conclusion(profile), c})
		}
	}
	return list
}

// Features describes the features of a report.
func (p page) Features(r *report.Report) []ruleText {
	var list []ruleText
	supported, failed, unsupported := r.Features()
	for i, features := range [][]string{supported, failed, unsupported} {
		if len(features) > 0 {
			list = append(list, ruleText{[]string{"supports", "fails at", "lacks"}[i], strings.Join(features, ", ")})
		}
	}
	return list
}

// Suite returns the version of this suite.
func (p page) Suite() string { return report.SuiteVersion }

// Columns returns the number of columns of the matrix.
func (p page) Columns() int { return len(p.Reports) + 1 }

func newPage(reports []*report.Report) (*page, error) {
	style, err := assets.ReadFile("assets/page.css")
	if err != nil {
		return nil, err
	}
	script, err := assets.ReadFile("assets/page.js")
	if err != nil {
		return nil, err
	}
	p := &page{
		Policy:  fmt.Sprintf("default-src 'none'; img-src data:; style-src %s; script-src %s", hash(style), hash(script)),
		Style:   template.HTML("<style>" + string(style) + "</style>"),    //nolint:gosec // a file of this package
		Script:  template.HTML("<script>" + string(script) + "</script>"), //nolint:gosec // a file of this package
		Several: len(reports) != 1,
	}
	all := func(is func(*report.Report) bool) bool {
		return len(reports) > 0 && !slices.ContainsFunc(reports, func(r *report.Report) bool { return !is(r) })
	}
	p.Differences = all(func(r *report.Report) bool { return r.Beside != nil })
	p.OwnTests = all(func(r *report.Report) bool { return r.Counts(report.Kubernetes).Total() > 0 })
	failed := map[string]string{}
	for _, r := range reports {
		r, err := r.Normalized()
		if err != nil {
			return nil, err
		}
		p.Reports = append(p.Reports, r)
		for rule, text := range r.FailedRules() {
			failed[rule] = text
		}
	}
	for rule := range semantics.All() {
		if failed[rule] != "" {
			p.Rules = append(p.Rules, ruleText{rule, failed[rule]})
		}
	}
	p.Charts = newCharts(p.Reports)
	p.fill()
	if !p.Differences && !p.OwnTests {
		p.support()
	}
	return p, nil
}

// fill adds the rows: all cases of the reports, in report order.
func (p *page) fill() {
	var all report.Report
	known := map[string]bool{}
	for _, r := range p.Reports {
		for _, result := range r.Results {
			if !known[result.Case] {
				known[result.Case] = true
				all.Results = append(all.Results, result)
			}
		}
	}
	all.Sort()
	for _, result := range all.Results {
		title := string(result.Profile)
		if result.Feature != "" {
			title += ": " + result.Feature
		}
		if last := len(p.Groups) - 1; last < 0 || p.Groups[last].Title != title {
			p.Groups = append(p.Groups, group{Profile: result.Profile, Title: title})
		}
		g := &p.Groups[len(p.Groups)-1]
		g.Rows = append(g.Rows, p.row(result))
	}
	urgency := []report.Verdict{report.Failed, report.Slow, report.NotJudged, report.Unsupported, report.NotRun}
	slices.SortStableFunc(p.Details, func(a, b detail) int {
		return slices.Index(urgency, a.Verdict) - slices.Index(urgency, b.Verdict)
	})
}

// support adds the features of Kubernetes.
func (p *page) support() {
	for _, f := range report.ServiceFeatures() {
		p.Supports = append(p.Supports, supportRow{ServiceFeature: f})
	}
	for _, r := range p.Reports {
		for i, s := range r.Support() {
			p.Supports[i].Cells = append(p.Supports[i].Cells, s)
		}
	}
}

func (p *page) row(of report.Result) row {
	line := row{Case: of.Case, Rules: of.Rules}
	classes := map[string]bool{}
	for i, r := range p.Reports {
		n := slices.IndexFunc(r.Results, func(other report.Result) bool { return other.Case == of.Case })
		if n < 0 {
			line.Cells = append(line.Cells, cell{})
			continue
		}
		result := r.Results[n]
		c := cell{Verdict: result.Verdict, Why: result.Why}
		if result.Verdict != report.Passed {
			c.ID = fmt.Sprintf("result-%d-%d", i+1, n+1)
			p.Details = append(p.Details, detail{c.ID, result, r.Title()})
		}
		classes[class(result.Verdict)] = true
		line.Cells = append(line.Cells, c)
	}
	for _, v := range report.Verdicts() {
		if classes[class(v)] {
			line.Classes += " has-" + class(v)
		}
	}
	return line
}

// class converts a verdict or an answer to a CSS class.
func class[T ~string](v T) string { return strings.ReplaceAll(string(v), " ", "-") }

// span is a part of a Markdown text.
type span struct {
	Text         string
	Code, Strong bool
}

// markdown splits a rule's text at backticks and pairs of asterisks, the only markup of rules.
func markdown(text string) []span {
	var spans []span
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			spans = append(spans, span{Text: part, Code: true})
			continue
		}
		for j, plain := range strings.Split(part, "**") {
			if plain != "" {
				spans = append(spans, span{Text: plain, Strong: j%2 == 1})
			}
		}
	}
	return spans
}

// hash returns an inline text's hash for a content security policy.
func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
