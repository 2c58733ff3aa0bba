package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/rules"
)

//go:embed assets
var assets embed.FS

// WriteHTML writes a page that needs nothing else, from one report or from several side by side: how many cases passed,
// a matrix of all cases, which can be filtered, and for each failure the path of the packet, what was seen, what should
// have happened and by which rules, and the objects. Everything can be read without JavaScript, which only adds a search.
//
// The page refers to docs/semantics.md for rules, and has the texts of those that failures name.
func WriteHTML(w io.Writer, reports ...*Report) error {
	p, err := newPage(reports)
	if err != nil {
		return err
	}
	t, err := template.New("page.html").Funcs(template.FuncMap{
		"markdown": markdown, "class": class,
	}).ParseFS(assets, "assets/page.html")
	if err != nil {
		return err
	}
	return t.Execute(w, p)
}

// page is what the template shows.
type page struct {
	Policy        string
	Style, Script template.HTML
	Reports       []*Report
	Groups        []group
	Details       []detail
	Rules         []ruleText
	Several       bool
	Differences   bool // all reports are comparisons of two programs
}

// group is the cases of a profile or of a feature.
type group struct {
	Profile Profile
	Title   string
	Rows    []row
}

// row is a case, with a cell for each report.
type row struct {
	Case    string
	Rules   []string
	Classes string // what filters look at
	Cells   []cell
}

// cell is the verdict of one report on a case; "" if it has none.
type cell struct {
	Verdict Verdict
	ID      string // of the detail, "" if there is none
	Why     string
}

// detail is a result that has something to tell.
type detail struct {
	ID string
	Result
	Title string // of the report
}

type ruleText struct{ Rule, Text string }

// Conclusions lists the profiles of a report that have cases.
func (p page) Conclusions(r *Report) []profileSummary {
	return slices.DeleteFunc(r.summary().Profiles, func(s profileSummary) bool { return s.Total() == 0 })
}

// Features returns the features of a report in words.
func (p page) Features(r *Report) []ruleText {
	var list []ruleText
	supported, failed, unsupported := r.Features()
	for i, features := range [][]string{supported, failed, unsupported} {
		if len(features) > 0 {
			list = append(list, ruleText{[]string{"supports", "fails at", "lacks"}[i], strings.Join(features, ", ")})
		}
	}
	return list
}

// Columns is the number of columns of the matrix.
func (p page) Columns() int { return len(p.Reports) + 1 }

func newPage(reports []*Report) (*page, error) {
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
		Style:   template.HTML("<style>" + string(style) + "</style>"),    //nolint:gosec // both are files of this package
		Script:  template.HTML("<script>" + string(script) + "</script>"), //nolint:gosec // likewise
		Several: len(reports) != 1,
	}
	p.Differences = len(reports) > 0 && !slices.ContainsFunc(reports, func(r *Report) bool { return r.Beside == nil })
	failed := map[string]string{}
	for _, r := range reports {
		r = r.cleaned()
		if err := r.validate(); err != nil {
			return nil, err
		}
		r.Results = r.sorted()
		p.Reports = append(p.Reports, r)
		for rule, text := range r.failedRules() {
			failed[rule] = text
		}
	}
	for rule := range rules.All() {
		if failed[rule] != "" {
			p.Rules = append(p.Rules, ruleText{rule, failed[rule]})
		}
	}
	p.fill()
	return p, nil
}

// fill makes the rows: the union of all cases, in the order of reports.
func (p *page) fill() {
	var all Report
	known := map[string]bool{}
	for _, r := range p.Reports {
		for _, result := range r.Results {
			if !known[result.Case] {
				known[result.Case] = true
				all.Results = append(all.Results, result)
			}
		}
	}
	for _, result := range all.sorted() {
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
	urgency := []Verdict{Failed, Slow, Unsupported, NotRun}
	slices.SortStableFunc(p.Details, func(a, b detail) int {
		return slices.Index(urgency, a.Verdict) - slices.Index(urgency, b.Verdict)
	})
}

func (p *page) row(of Result) row {
	line := row{Case: of.Case, Rules: of.Rules}
	classes := map[string]bool{}
	for i, r := range p.Reports {
		n := slices.IndexFunc(r.Results, func(other Result) bool { return other.Case == of.Case })
		if n < 0 {
			line.Cells = append(line.Cells, cell{})
			continue
		}
		result := r.Results[n]
		c := cell{Verdict: result.Verdict, Why: result.Why}
		if result.Verdict != Passed {
			c.ID = fmt.Sprintf("result-%d-%d", i+1, n+1)
			p.Details = append(p.Details, detail{c.ID, result, r.Title()})
		}
		classes[class(result.Verdict)] = true
		line.Cells = append(line.Cells, c)
	}
	for _, v := range Verdicts() {
		if classes[class(v)] {
			line.Classes += " has-" + class(v)
		}
	}
	return line
}

// class returns a verdict as the name of a class.
func class(v Verdict) string { return strings.ReplaceAll(string(v), " ", "-") }

// span is a part of a text in Markdown.
type span struct {
	Text         string
	Code, Strong bool
}

// markdown splits a rule's text at its backticks and pairs of asterisks, which is all that rules have.
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

// hash returns what a content security policy calls an inline text.
func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
