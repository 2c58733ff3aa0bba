package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/kube-proxy-lib/cmd/judge/internal/output"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

func main() {
	ctx, cancel, out, usage := untilEnded(os.Stdout, os.Stderr)
	defer cancel()
	passed, err := run(ctx, os.Args[1:], out, usage)
	var part *partError
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, &part):
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(3)
	case err != nil:
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(2)
	case !passed:
		os.Exit(1)
	}
}

// partError says that nothing failed, but that some of the cases that were to run have no verdict, or that speed was
// not measured at some sizes.
type partError struct{ cases, sizes int }

func (e *partError) Error() string {
	var parts []string
	if e.cases > 0 {
		parts = append(parts, fmt.Sprintf("%d cases that were to be run have no verdict", e.cases))
	}
	if e.sizes > 0 {
		parts = append(parts, fmt.Sprintf("speed was not measured at %d sizes", e.sizes))
	}
	return "nothing failed, but " + strings.Join(parts, ", and ")
}

// verdict returns what run returns for a report.
func verdict(r *report.Report) (passed bool, err error) {
	missing := 0
	for _, result := range r.Results {
		if result.Profile != report.Note && (result.Verdict == report.NotJudged || result.Interrupted) {
			missing++
		}
	}
	sizes := 0
	if r.Speed != nil {
		for _, s := range r.Speed.Runs {
			if s.NotMeasured {
				sizes++
			}
		}
	}
	if passed = passes(r); passed && missing+sizes > 0 {
		err = &partError{missing, sizes}
	}
	return passed, err
}

// options are the values of the flags.
type options struct {
	proxy, cleanup, breaks, report string
	name, version, mode, url       string
	run, assume, lacks             string
	apiServer, context             string
	sizes                          []program.Size
	rates                          []int
	merge                          []string // reports to merge, instead of a run
	page                           []string // reports to show side by side, instead of a run
	core, verbose, evenIfBusy      bool
	lanes                          int

	// The program to compare with, or nil. Only these flags and its folder are used.
	beside       *options
	clusters     int
	time         time.Duration
	seed         uint64
	startTimeout time.Duration
	opened       atomic.Int64 // number of nodes so far, for file names
	cluster      *cluster     // nil: each node has an API server in this process
}

func parse(args []string, usage io.Writer) (*options, error) {
	o, beside := &options{}, &options{}
	f := flag.NewFlagSet("judge", flag.ContinueOnError)
	f.SetOutput(usage)
	f.Usage = func() {
		fmt.Fprintf(usage, "usage: judge --proxy COMMAND [--report FOLDER] [...]\n"+
			"       judge --proxy COMMAND --beside COMMAND [--report FOLDER] [...]\n"+
			"       judge --merge REPORT --merge REPORT [--report FOLDER]\n"+
			"       judge --page REPORT --page REPORT [--report FOLDER]\n\n"+
			"Tests a service proxy, or compares two. In commands, which a shell runs on the node, these are replaced:\n%s\n",
			placeholderHelp())
		f.PrintDefaults()
	}
	f.StringVar(&o.proxy, "proxy", "", "`command` that starts the proxy and stays in the foreground (required)")
	f.StringVar(&o.cleanup, "cleanup", "",
		"`command` that removes everything that the proxy has applied; run while it is stopped")
	f.StringVar(&o.breaks, "break", "", "`command` that removes rules while the proxy runs, so that it has to repair them")
	f.StringVar(&beside.proxy, "beside", "",
		"`command` that starts another proxy. Both serve random clusters, instead of cases, and the differences are listed")
	f.StringVar(&beside.cleanup, "beside-cleanup", "", "`command` that removes what the other proxy has applied")
	f.StringVar(&beside.name, "beside-name", "", "name of the other proxy in the report (default: that of the program)")
	f.IntVar(&o.clusters, "clusters", 0, "with --beside: `number` of random clusters (default 60)")
	f.DurationVar(&o.time, "time", 0, "with --beside: no cluster is begun after this time (default 5m)")
	f.StringVar(&o.report, "report", "", "`folder` for the report and the logs of the proxy (default: a temporary one)")
	f.StringVar(&o.run, "run", "", "`pattern` of the names of the cases to run")
	f.BoolVar(&o.core, "core", false, "run only what Kubernetes documents")
	f.BoolVar(&o.evenIfBusy, "even-if-busy", false,
		"judge what goes wrong even while other programs keep the machine too busy for a right proxy")
	f.StringVar(&o.assume, "assume", "",
		"`list` of how the proxy is configured, without {flags}: detect=node-cidr|cluster-cidr|none, "+
			"nodeports=primary|all|localhost, masquerade-all (default: detected)")
	f.StringVar(&o.lacks, "lacks", "", "`features` that the proxy does not claim to have: IPv6, SCTP, ExternalIPs ...")
	f.StringVar(&o.apiServer, "api-server", "",
		"`kubeconfig` of a real API server to use, instead of one in the process. "+
			"It must have no Nodes, and no Services but its own")
	f.StringVar(&o.context, "context", "", "with --api-server: `name` of the context (default: the current one)")
	f.Func("merge", "`report.yaml` of a run of other cases with the same proxy; two or more become one report, "+
		"and nothing is run", func(path string) error {
		o.merge = append(o.merge, path)
		return nil
	})
	f.Func("page", "`report.yaml` of any run, or of Kubernetes' own tests; a report.html shows it and others side by "+
		"side, and nothing is run",
		func(path string) error {
			o.page = append(o.page, path)
			return nil
		})
	f.Func("churn", "with --speed: `rates` of changes a second at which to measure, each for ten seconds, "+
		"and again beside "+
		"a listing of the rules: 10,100,1000 (default: 10)", func(text string) (err error) {
		o.rates, err = parseRates(text)
		return err
	})
	f.Func("speed", "`sizes` of clusters, services x endpoints of each, at which to measure speed: 1000x10,5000x10 "+
		"(default: none); with --run ^$ nothing else is done", func(text string) (err error) {
		o.sizes, err = parseSizes(text)
		return err
	})
	f.BoolVar(&o.verbose, "v", false, "print for each failure what happened, what should have, and the objects")
	f.IntVar(&o.lanes, "lanes", 0, "`number` of networks, each with a proxy of its own (default 4)")
	f.Uint64Var(&o.seed, "seed", 0, "`seed` of the source ports and of random clusters (default: a random one)")
	f.DurationVar(&o.startTimeout, "start-timeout", 0,
		"how long the proxy may take until it serves, whenever it is started (default 1m)")
	f.StringVar(&o.name, "name", "", "name of the proxy in the report (default: that of the program)")
	f.StringVar(&o.version, "version", "", "version of the proxy in the report")
	f.StringVar(&o.mode, "mode", "", "mode of the proxy in the report")
	f.StringVar(&o.url, "url", "", "where the proxy comes from, in the report")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: quote the whole command", f.Arg(0))
	case len(o.merge)+len(o.page) > 0 && o.proxy != "":
		return nil, errors.New("--merge and --page run nothing: they go without --proxy")
	case len(o.merge) > 0 && len(o.page) > 0:
		return nil, errors.New("--merge makes one report, --page shows several: choose one of them")
	case len(o.merge)+len(o.page) > 0:
		return o, nil
	case strings.TrimSpace(o.proxy) == "":
		return nil, errors.New("--proxy is missing: the command that starts the proxy")
	case o.rates != nil && o.sizes == nil:
		return nil, errors.New("--churn needs --speed: the sizes of clusters")
	case o.context != "" && o.apiServer == "":
		return nil, errors.New("--context needs --api-server")
	case o.apiServer != "" && (beside.proxy != "" || o.sizes != nil):
		return nil, errors.New("--beside and --speed need the API server in the process, not --api-server")
	case o.lanes < 0 || o.startTimeout < 0:
		return nil, errors.New("--lanes and --start-timeout must not be negative")
	case o.apiServer != "" && o.lanes > 1:
		return nil, errors.New("--lanes: a real API server has the objects of one network")
	}
	return o, o.pair(beside)
}

// run runs the judge. passed is false if a case failed that every proxy must pass. If none did, but some have no
// verdict, the error is a partError.
func run(ctx context.Context, args []string, out, usage io.Writer) (passed bool, err error) {
	o, err := parse(args, usage)
	if err != nil {
		return false, err
	}
	j := judge.Options{CoreOnly: o.core, Lanes: o.lanes, Seed: o.seed, StartTimeout: o.startTimeout,
		Sizes: o.sizes, Rates: o.rates, EvenIfBusy: o.evenIfBusy}
	if o.run != "" {
		if j.Run, err = regexp.Compile(o.run); err != nil {
			return false, fmt.Errorf("--run: %w", err)
		}
	}
	if o.report == "" {
		if o.report, err = os.MkdirTemp("", "judge-"); err != nil {
			return false, err
		}
	}
	if o.report, err = filepath.Abs(o.report); err != nil {
		return false, err
	}
	if i := strings.IndexFunc(o.report, needsQuotes); i >= 0 && o.proxy != "" {
		character, _ := utf8.DecodeRuneInString(o.report[i:])
		return false, fmt.Errorf("--report: commands get the folder %q in {kubeconfig} and {dir}, and a shell does not take "+
			"%q as it is", o.report, character)
	}
	if err := os.MkdirAll(o.report, 0o755); err != nil {
		return false, err
	}
	release, err := lockFolder(o.report)
	if err != nil {
		return false, fmt.Errorf("--report: %w", err)
	}
	defer release()
	switch {
	case len(o.merge) > 0:
		return o.mergeReports(out)
	case len(o.page) > 0:
		return true, o.writePage(out)
	}
	p, err := o.program()
	if err != nil {
		return false, err
	}
	began := time.Now()
	j.Say = func(text string) { fmt.Fprintf(out, "%7.1fs  %s\n", time.Since(began).Seconds(), report.Clean(text)) }
	if o.apiServer != "" {
		if ctx, o.cluster, err = connect(ctx, o, j.Say); err != nil {
			return false, err
		}
		defer o.cluster.release()
		j.Lanes = 1
	}
	j.Say("start the program; its log is in " + o.report)
	var r *report.Report
	if o.beside != nil {
		r, err = o.compare(ctx, p, j)
	} else if err = o.findPrograms(ctx); err == nil {
		j.Progress = o.progress(out, began)
		r, err = judge.Run(ctx, p, j)
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = cause
	}
	if r == nil {
		return false, err
	}
	o.seed = r.Seed
	r.Implementation = o.implementation()
	r.Suite = report.SuiteVersion
	fmt.Fprintln(out)
	if err := errors.Join(err, write(o.report, r), output.Text(out, r, o.beside != nil)); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "\nThe report is in %s; it took %v.\n", o.report, time.Since(began).Round(time.Second))
	return verdict(r)
}

// needsQuotes reports whether a character may be special to a shell.
func needsQuotes(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-+=@%,:", r)
}

// passes reports whether no case failed that every proxy must pass.
func passes(r *report.Report) bool {
	failed := 0
	for _, p := range []report.Profile{report.Comparison, report.Core, report.Extended} {
		failed += r.Counts(p).Failed
	}
	return r.Problem == "" && failed == 0 && (r.Speed == nil || !slices.ContainsFunc(r.Speed.Runs,
		func(s report.SpeedRun) bool { return s.Problem != "" && !s.NotMeasured }))
}

// readReports has read add a report each.
func readReports(paths []string, read func(text []byte) error) error {
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := read(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// writePage writes an HTML page with the reports side by side.
func (o *options) writePage(out io.Writer) error {
	var reports []*report.Report
	var own []*owntests.Report
	err := readReports(o.page, func(text []byte) error {
		if owntests.Is(text) {
			r, err := owntests.Read(text)
			own = append(own, r)
			return err
		}
		r, err := report.Read(text)
		reports = append(reports, r)
		return err
	})
	if err != nil {
		return err
	}
	var page bytes.Buffer
	switch {
	case len(own) == 0:
		err = output.HTML(&page, reports...)
	case len(reports) == 0:
		err = output.OwnTestsHTML(&page, own...)
	default:
		err = errors.New("--page: reports of Kubernetes' own tests need a page of their own")
	}
	if err != nil {
		return err
	}
	path := filepath.Join(o.report, "report.html")
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = page.WriteTo(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "The page is %s.\n", path)
	return err
}

// mergeReports merges reports and writes the result.
func (o *options) mergeReports(out io.Writer) (passed bool, err error) {
	var reports []*report.Report
	err = readReports(o.merge, func(text []byte) error {
		if owntests.Is(text) {
			return errors.New("it is about Kubernetes' own tests: --page shows it")
		}
		r, err := report.Read(text)
		reports = append(reports, r)
		return err
	})
	if err != nil {
		return false, err
	}
	r, err := report.Merge(reports...)
	if err != nil {
		return false, fmt.Errorf("--merge: %w", err)
	}
	if err := errors.Join(write(o.report, r), output.Text(out, r, false)); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "\nThe report is in %s.\n", o.report)
	return verdict(r)
}

// implementation returns the description of the proxy from the flags.
func (o *options) implementation() report.Implementation {
	name := o.name
	if name == "" {
		for _, word := range strings.Fields(o.proxy) {
			if !strings.Contains(word, "=") { // not an environment variable
				name = filepath.Base(word)
				break
			}
		}
	}
	return report.Implementation{Name: name, Version: o.version, Mode: o.mode, URL: o.url,
		Command: o.reproduce()}
}

// reproduce returns the command that repeats the run.
func (o *options) reproduce() string {
	type unquoted string
	beside := cmp.Or(o.beside, &options{})
	command := "go run ./cmd/judge"
	for _, f := range []struct {
		name  string
		value any
	}{
		{"proxy", o.proxy}, {"cleanup", o.cleanup},
		{"beside", beside.proxy}, {"beside-cleanup", beside.cleanup}, {"beside-name", beside.name},
		{"api-server", o.apiServer}, {"context", o.context},
		{"break", o.breaks}, {"assume", o.assume}, {"lacks", o.lacks}, {"run", o.run},
		{"core", o.core}, {"even-if-busy", o.evenIfBusy},
		{"speed", unquoted(join(o.sizes))},
		{"churn", unquoted(strings.Trim(strings.ReplaceAll(fmt.Sprint(o.rates), " ", ","), "[]"))},
		{"clusters", o.clusters}, {"time", o.time}, {"lanes", o.lanes}, {"start-timeout", o.startTimeout},
		{"name", o.name}, {"version", o.version}, {"mode", o.mode}, {"url", o.url}, {"seed", o.seed},
	} {
		if reflect.ValueOf(f.value).IsZero() {
			continue
		}
		command += " --" + f.name
		switch v := f.value.(type) {
		case bool:
		case string:
			command += " '" + strings.ReplaceAll(v, "'", `'\''`) + "'"
		default:
			command += fmt.Sprintf(" %v", v)
		}
	}
	return command
}

func write(folder string, r *report.Report) error {
	var errs []error
	for name, writer := range map[string]func(io.Writer, *report.Report) error{
		"report.yaml": report.WriteYAML, "junit.xml": output.JUnit,
		"report.html": func(w io.Writer, r *report.Report) error { return output.HTML(w, r) },
	} {
		file, err := os.Create(filepath.Join(folder, name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, writer(file, r), file.Close())
	}
	return errors.Join(errs...)
}
