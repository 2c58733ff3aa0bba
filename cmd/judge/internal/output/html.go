package output

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
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
	return p.write(w)
}

// write sorts the details by urgency, and fills in the template.
func (p *page) write(w io.Writer) error {
	urgency := []string{class(report.Failed), class(report.Slow), class(report.NotJudged), class(report.Unsupported),
		class(report.NotRun)}
	slices.SortStableFunc(p.Details, func(a, b detail) int {
		return slices.Index(urgency, a.Class) - slices.Index(urgency, b.Class)
	})
	style, err := assets.ReadFile("assets/page.css")
	if err != nil {
		return err
	}
	script, err := assets.ReadFile("assets/page.js")
	if err != nil {
		return err
	}
	p.Policy = fmt.Sprintf("default-src 'none'; img-src data:; style-src %s; script-src %s", hash(style), hash(script))
	p.Style = template.HTML("<style>" + string(style) + "</style>")     //nolint:gosec // a file of this package
	p.Script = template.HTML("<script>" + string(script) + "</script>") //nolint:gosec // a file of this package
	t, err := template.New("page.html").Funcs(template.FuncMap{
		"markdown": markdown, "class": class[string], "answer": class[report.Answer],
		"lower": strings.ToLower,
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
	texts
	Cards    []card
	Supports []supportRow // empty for comparisons
	Groups   []group
	Details  []detail
	Rules    []ruleText
	Charts   *charts // nil without speed figures
}

// texts are the words that depend on what the page is about.
type texts struct {
	Title, Heading string
	// Case is the heading of the first column; Search the hint of the search, and Failed and Others the filters.
	Case, Search, Failed, Others string
	// Results is the heading of the details, and Nothing says that there are none.
	Results, Nothing string
}

// textsOf returns the words for reports of the suite, or for comparisons.
func textsOf(differences bool) texts {
	t := texts{Title: "Conformance", Heading: "Service proxy conformance", Case: "Case", Search: "Case or rule",
		Failed: "failed or slow", Others: "not supported, not judged or not run", Results: "Failures",
		Nothing: "Nothing failed, and everything was tried."}
	if differences {
		t.Title, t.Heading = "Side by side", "Service proxies side by side"
		t.Results, t.Nothing = "Differences", "Nothing is different, and everything was tried."
	}
	return t
}

// card is what the page says of one report as a whole.
type card struct {
	Title   string
	Column  string   // heading of the report in tables
	Facts   [][]fact // lines, before the counts
	Warning string
	Command string
	Log     string
	Counts  []count
	More    []fact // after the counts
	Speed   *report.Speed
}

// fact is a text around a value that stands out. Either may be empty.
type fact struct{ Before, Value, After string }

// count is a row of the table of a card: a part of the results, in one word and in numbers.
type count struct{ Part, Result, Numbers string }

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
	Verdict, Class string
	ID             string // of the detail, "" if there is none
	Why            string
}

// detail is a result with failures or an explanation.
type detail struct {
	ID string
	report.Result
	Class string // of its verdict
	Title string // of the report
}

type ruleText struct{ Rule, Text string }

// newCard describes a report.
func newCard(r *report.Report) card {
	c := card{Title: r.Title(), Column: r.Implementation.String(), Command: r.Implementation.Command, Log: r.Log,
		Speed: r.Speed}
	facts := []fact{{"suite", r.Suite, ""}, {"kernel", r.Kernel, ""}, {"seed", strconv.FormatUint(r.Seed, 10), ""}}
	if url := r.Implementation.URL; url != "" {
		facts = append(facts, fact{Before: url})
	}
	c.Facts = append(c.Facts, facts)
	if newer := r.Newer(); len(newer) > 0 {
		c.Facts = append(c.Facts, []fact{{"of an older suite: version " + report.SuiteVersion + " has",
			strconv.Itoa(len(newer)), "cases more"}})
	}
	if r.Machine != nil {
		c.Facts = append(c.Facts, []fact{{Before: r.Machine.String()}})
	}
	if r.Problem != "" {
		c.Warning = "The run ended early: " + r.Problem
	}
	for _, profile := range report.Profiles() {
		if n := r.Counts(profile); n.Total() > 0 {
			c.Counts = append(c.Counts, count{string(profile), r.Conclusion(profile), n.String()})
		}
	}
	supported, failed, unsupported := r.Features()
	for i, features := range [][]string{supported, failed, unsupported} {
		if len(features) > 0 {
			c.More = append(c.More, fact{[]string{"supports", "fails at", "lacks"}[i], strings.Join(features, ", "), ""})
		}
	}
	return c
}

// Several tells whether there is more than one report.
func (p page) Several() bool { return len(p.Cards) != 1 }

// Columns returns the number of columns of the matrix.
func (p page) Columns() int { return len(p.Cards) + 1 }

func newPage(reports []*report.Report) (*page, error) {
	alone := func(r *report.Report) bool { return r.Beside == nil }
	differences := len(reports) > 0 && !slices.ContainsFunc(reports, alone)
	p := &page{texts: textsOf(differences)}
	var all []*report.Report
	failed := map[string]string{}
	for _, r := range reports {
		r, err := r.Normalized()
		if err != nil {
			return nil, err
		}
		all = append(all, r)
		p.Cards = append(p.Cards, newCard(r))
		for rule, text := range r.FailedRules() {
			failed[rule] = text
		}
	}
	for rule := range semantics.All() {
		if failed[rule] != "" {
			p.Rules = append(p.Rules, ruleText{rule, failed[rule]})
		}
	}
	p.Charts = newCharts(all)
	p.fill(all)
	if !differences {
		p.support(all)
	}
	return p, nil
}

// fill adds the rows: all cases of the reports, in report order.
func (p *page) fill(reports []*report.Report) {
	var all report.Report
	known := map[string]bool{}
	for _, r := range reports {
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
		g.Rows = append(g.Rows, p.row(reports, result))
	}
}

// support adds the features of Kubernetes.
func (p *page) support(reports []*report.Report) {
	for _, f := range report.ServiceFeatures() {
		p.Supports = append(p.Supports, supportRow{ServiceFeature: f})
	}
	for _, r := range reports {
		for i, s := range r.Support() {
			p.Supports[i].Cells = append(p.Supports[i].Cells, s)
		}
	}
}

func (p *page) row(reports []*report.Report, of report.Result) row {
	line := row{Case: of.Case, Rules: of.Rules}
	classes := map[string]bool{}
	for i, r := range reports {
		n := slices.IndexFunc(r.Results, func(other report.Result) bool { return other.Case == of.Case })
		if n < 0 {
			line.Cells = append(line.Cells, cell{})
			continue
		}
		result := r.Results[n]
		c := cell{Verdict: string(result.Verdict), Class: class(result.Verdict), Why: result.Why}
		if result.Verdict != report.Passed {
			c.ID = fmt.Sprintf("result-%d-%d", i+1, n+1)
			p.Details = append(p.Details, detail{c.ID, result, c.Class, r.Title()})
		}
		classes[c.Class] = true
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
