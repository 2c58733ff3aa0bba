package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

func main() {
	ctx, cancel, out, usage := untilEnded(os.Stdout, os.Stderr)
	defer cancel()
	passed, err := run(ctx, os.Args[1:], out, usage)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(2)
	case !passed:
		os.Exit(1)
	}
}

// suiteVersion is the version of the cases.
const suiteVersion = "0.1"

// options are the flags.
type options struct {
	proxy, cleanup, breaks, report string
	name, version, mode, url       string
	run, assume, lacks             string
	apiServer, context             string
	sizes                          []conformance.Size
	merge                          []string // reports to join, instead of a run
	core, verbose                  bool
	lanes                          int

	// The program beside it, nil if there is none. It has only these flags, and a folder of its own.
	beside       *options
	clusters     int
	time         time.Duration
	seed         uint64
	startTimeout time.Duration
	opened       atomic.Int64 // nodes so far, for the names of files
	cluster      *cluster     // nil: each node has an API server in this process
}

func parse(args []string, usage io.Writer) (*options, error) {
	o, beside := &options{}, &options{}
	f := flag.NewFlagSet("judge", flag.ContinueOnError)
	f.SetOutput(usage)
	f.Usage = func() {
		fmt.Fprintf(usage, "usage: judge --proxy COMMAND [--report FOLDER] [...]\n"+
			"       judge --proxy COMMAND --beside COMMAND [--report FOLDER] [...]\n"+
			"       judge --merge REPORT --merge REPORT [--report FOLDER]\n\n"+
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
	f.StringVar(&o.assume, "assume", "",
		"`list` of how the proxy is configured, without {flags}: detect=node-cidr|cluster-cidr|none, "+
			"nodeports=primary|all|localhost, masquerade-all (default: detected)")
	f.StringVar(&o.lacks, "lacks", "", "`features` that the proxy does not claim to have: IPv6, SCTP, SourceRanges ...")
	f.StringVar(&o.apiServer, "api-server", "", "`kubeconfig` of a real API server to use, instead of one in the process. "+
		"It must have no Nodes, and no Services but its own")
	f.StringVar(&o.context, "context", "", "with --api-server: `name` of the context (default: the current one)")
	f.Func("merge", "`report.yaml` of a run of other cases with the same proxy; two or more become one report, "+
		"and nothing is run", func(path string) error {
		o.merge = append(o.merge, path)
		return nil
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
	case len(o.merge) > 0 && o.proxy != "":
		return nil, errors.New("--merge runs nothing: it goes without --proxy")
	case len(o.merge) > 0:
		return o, nil
	case strings.TrimSpace(o.proxy) == "":
		return nil, errors.New("--proxy is missing: the command that starts the proxy")
	case o.context != "" && o.apiServer == "":
		return nil, errors.New("--context needs --api-server")
	case o.apiServer != "" && (beside.proxy != "" || o.sizes != nil):
		return nil, errors.New("--beside and --speed need the API server in the process, not --api-server")
	case o.lanes < 0 || o.startTimeout < 0:
		return nil, errors.New("--lanes and --start-timeout: less than nothing")
	case o.apiServer != "" && o.lanes > 1:
		return nil, errors.New("--lanes: a real API server has the objects of one network")
	}
	return o, o.pair(beside)
}

// run judges. It returns whether nothing that every proxy must do failed.
func run(ctx context.Context, args []string, out, usage io.Writer) (passed bool, err error) {
	o, err := parse(args, usage)
	if err != nil {
		return false, err
	}
	judge := conformance.JudgeOptions{CoreOnly: o.core, Lanes: o.lanes, Seed: o.seed, StartTimeout: o.startTimeout,
		Sizes: o.sizes}
	if o.run != "" {
		if judge.Run, err = regexp.Compile(o.run); err != nil {
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
	if i := strings.IndexFunc(o.report, needsQuotes); i >= 0 && len(o.merge) == 0 {
		character, _ := utf8.DecodeRuneInString(o.report[i:])
		return false, fmt.Errorf("--report: commands get the folder %q in {kubeconfig} and {dir}, and a shell does not take "+
			"%q as it is", o.report, character)
	}
	if err := os.MkdirAll(o.report, 0o755); err != nil {
		return false, err
	}
	if len(o.merge) > 0 {
		return o.mergeReports(out)
	}
	p, err := o.program()
	if err != nil {
		return false, err
	}
	began := time.Now()
	judge.Say = func(text string) { fmt.Fprintf(out, "%7.1fs  %s\n", time.Since(began).Seconds(), report.Clean(text)) }
	if o.apiServer != "" {
		if ctx, o.cluster, err = connect(ctx, o, judge.Say); err != nil {
			return false, err
		}
		defer o.cluster.release()
		judge.Lanes = 1
	}
	judge.Say("start the program; its log is in " + o.report)
	var r *report.Report
	if o.beside != nil {
		r, err = o.compare(ctx, p, judge)
	} else {
		judge.Progress = o.progress(out, began)
		r, err = conformance.Judge(ctx, p, judge)
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = cause
	}
	if r == nil {
		return false, err
	}
	o.seed = r.Seed
	r.Implementation = o.implementation()
	r.Suite = suiteVersion
	fmt.Fprintln(out)
	if err := errors.Join(err, write(o.report, r), report.WriteText(out, r, o.beside != nil)); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "\nThe report is in %s; it took %v.\n", o.report, time.Since(began).Round(time.Second))
	return passes(r), nil
}

// needsQuotes reports whether a shell may take a character for something else.
func needsQuotes(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-+=@%,:", r)
}

// passes reports whether nothing that every proxy must do failed.
func passes(r *report.Report) bool {
	failed := 0
	for _, p := range []report.Profile{report.Comparison, report.Core, report.Extended} {
		failed += r.Counts(p).Failed
	}
	return r.Problem == "" && failed == 0 &&
		(r.Speed == nil || !slices.ContainsFunc(r.Speed.Runs, func(s report.SpeedRun) bool { return s.Problem != "" }))
}

// mergeReports joins reports, and writes what they make.
func (o *options) mergeReports(out io.Writer) (passed bool, err error) {
	var reports []*report.Report
	for _, path := range o.merge {
		text, err := os.ReadFile(path)
		if err != nil {
			return false, err
		}
		r, err := report.Read(text)
		if err != nil {
			return false, fmt.Errorf("%s: %w", path, err)
		}
		reports = append(reports, r)
	}
	r, err := report.Merge(reports...)
	if err != nil {
		return false, fmt.Errorf("--merge: %w", err)
	}
	if err := errors.Join(write(o.report, r), report.WriteText(out, r, false)); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "\nThe report is in %s.\n", o.report)
	return passes(r), nil
}

// progress returns what prints the results one by one.
func (o *options) progress(out io.Writer, began time.Time) func(report.Result, int) {
	done := 0
	return func(r report.Result, of int) {
		done++
		if r.Why == "it was not selected" {
			return
		}
		fmt.Fprintf(out, "%7.1fs %3d/%d  %-11s %s%s\n", time.Since(began).Seconds(), done, of, r.Verdict, r.Case, about(r))
		if o.verbose {
			printFailures(out, r)
		}
	}
}

// about says in brackets what a result is, if it is not core.
func about(r report.Result) string {
	switch r.Profile {
	case report.Extended:
		return " (extended: " + r.Feature + ")"
	case report.Note:
		return " (note)"
	}
	return ""
}

func printFailures(out io.Writer, r report.Result) {
	for _, f := range r.Failures {
		var b strings.Builder
		if f.Step != "" {
			fmt.Fprintf(&b, "%s\n", f.Step)
		}
		if f.Flow != nil {
			fmt.Fprintf(&b, "flow: %v\n", f.Flow)
		}
		fmt.Fprintf(&b, "seen: %s\n", f.Seen)
		for _, w := range f.Want {
			fmt.Fprintf(&b, "want: %s\n", w.What)
			for _, reason := range w.Reasons {
				fmt.Fprintf(&b, "    %v\n", reason)
			}
		}
		if f.Objects != "" {
			fmt.Fprintf(&b, "with these objects:\n%s", f.Objects)
		}
		text := strings.TrimRight(report.Clean(b.String()), "\n")
		fmt.Fprintf(out, "    %s\n\n", strings.ReplaceAll(text, "\n", "\n    "))
	}
}

// implementation is what the flags say of the proxy.
func (o *options) implementation() report.Implementation {
	name := o.name
	if name == "" {
		for _, word := range strings.Fields(o.proxy) {
			if !strings.Contains(word, "=") { // a variable
				name = filepath.Base(word)
				break
			}
		}
	}
	return report.Implementation{Name: name, Version: o.version, Mode: o.mode, URL: o.url,
		Command: o.reproduce()}
}

// reproduce is the command that repeats the run.
func (o *options) reproduce() string {
	command := "go run ./testing/judge"
	add := func(name, value string) {
		if value != "" {
			command += " --" + name + " '" + strings.ReplaceAll(value, "'", `'\''`) + "'"
		}
	}
	add("proxy", o.proxy)
	add("cleanup", o.cleanup)
	if o.beside != nil {
		add("beside", o.beside.proxy)
		add("beside-cleanup", o.beside.cleanup)
		add("seed", fmt.Sprint(o.seed))
	}
	add("api-server", o.apiServer)
	add("context", o.context)
	add("break", o.breaks)
	add("assume", o.assume)
	add("lacks", o.lacks)
	add("run", o.run)
	if o.core {
		command += " --core"
	}
	if len(o.sizes) > 0 {
		command += " --speed " + join(o.sizes)
	}
	return command
}

// write writes the files of a report.
func write(folder string, r *report.Report) error {
	var errs []error
	for name, writer := range map[string]func(io.Writer, *report.Report) error{
		"report.yaml": report.WriteYAML, "junit.xml": report.WriteJUnit,
		"report.html": func(w io.Writer, r *report.Report) error { return report.WriteHTML(w, r) },
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
