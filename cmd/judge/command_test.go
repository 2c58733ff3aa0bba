package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// The command of a proxy with kube-proxy's flags, as it is started for a case.
func Example() {
	flags := kubeProxyFlags(program.Configuration{Local: program.NodeCIDR,
		NodePorts: nodeaddr.Choice{Primary: true}})
	command, err := replace("kube-proxy --hostname-override {node} {flags}",
		map[string]string{"node": "n1", "flags": flags})
	fmt.Println(strings.ReplaceAll(command, " --", "\n  --"), err)
	// Output:
	// kube-proxy
	//   --hostname-override n1
	//   --detect-local-mode=NodeCIDR
	//   --nodeport-addresses=primary
	//   --iptables-localhost-nodeports=false <nil>
}

func TestPlaceholders(t *testing.T) {
	values := map[string]string{"node": "n1", "dir": "/tmp/x"}
	for command, want := range map[string]string{
		"a {node} {dir}/b":               "a n1 /tmp/x/b",
		"{node}{node}":                   "n1n1",
		`x "${HOME}" {}`:                 `x "${HOME}" {}`,
		"nft '{ type nat hook x; }' {no": "nft '{ type nat hook x; }' {no",
		"\xff{node}\x00":                 "\xffn1\x00",
	} {
		got, err := replace(command, values)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := replace("a {nodes}", values)
	assert.ErrorContains(t, err, "there is no {nodes}")
}

// A program that does not exist is reported once, before anything is created.
func TestAProgramThatDoesNotExist(t *testing.T) {
	const missing = "kube-proxy-of-nobody"
	for command, want := range map[string]bool{
		"sh {flags}": true, "exec sh": true, missing + " || sh": true, "{dir}/made": true, "exec -a x sh": true,
		"PATH=/opt " + missing: false, "A=/opt PATH=$A " + missing: false, "PATH=/nowhere:$PATH exec sh": true,
		"PATH=/nowhere sh": false, "PATH=$(pwd) " + missing: true, "PATH={dir} " + missing: true, "exec " + missing: false,
		"A='x y' exec " + missing + " {flags}": false, "A=b": true, "exec": true,
		"for": true, "": true, missing + " --flag {flags}": false, "/nowhere/" + missing: false,
	} {
		err := (&options{proxy: command}).findPrograms(t.Context())
		if want {
			assert.NoError(t, err, command)
		} else {
			assert.ErrorContains(t, err, "there is no program", command)
		}
	}
}

func TestFlagsOfAConfiguration(t *testing.T) {
	pods := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, tc := range []struct {
		c    program.Configuration
		want string
	}{
		{program.Configuration{}, "--detect-local-mode=ClusterCIDR --nodeport-addresses=0.0.0.0/0,::/0 " +
			"--iptables-localhost-nodeports=false"},
		{program.Configuration{Local: program.ClusterCIDR, ClusterCIDRs: pods, MasqueradeAll: true,
			LocalhostNodePorts: true}, "--detect-local-mode=ClusterCIDR --cluster-cidr=10.0.0.0/8,fd00::/8 " +
			"--masquerade-all=true --nodeport-addresses=0.0.0.0/0,::/0 --iptables-localhost-nodeports=true"},
		{program.Configuration{Local: program.BridgeInterface, Bridge: "br0",
			NodePorts: nodeaddr.Choice{Primary: true, CIDRs: pods[:1]}, LoopbackProxy: true},
			"--detect-local-mode=BridgeInterface --pod-bridge-interface=br0 --nodeport-addresses=primary,10.0.0.0/8 " +
				"--iptables-localhost-nodeports=false --feature-gates=KubeProxyNFTablesLocalhostNodePorts=true"},
	} {
		assert.Equal(t, tc.want, kubeProxyFlags(tc.c))
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "--proxy is missing"},
		{[]string{"--proxy", " "}, "--proxy is missing"},
		{[]string{"--proxy", "kube-proxy", "--kubeconfig", "x"}, "not defined: -kubeconfig"},
		{[]string{"--proxy", "kube-proxy", "{kubeconfig}"}, "quote the whole command"},
		{[]string{"--proxy", "kube-proxy {nodename}"}, "there is no {nodename}"},
		{[]string{"--proxy", "a", "--cleanup", "a {nodename}"}, "there is no {nodename}"},
		{[]string{"--proxy", "a", "--run", "("}, "--run: error parsing regexp"},
		{[]string{"--proxy", "a", "--assume", "detect=maybe"}, `--assume: unknown "detect=maybe"`},
		{[]string{"--proxy", "a {flags}", "--assume", "detect=none"}, "the command has {flags}"},
		{[]string{"--proxy", "a", "--lanes", "-1"}, "must not be negative"},
		{[]string{"--proxy", "a", "--start-timeout", "-1s"}, "must not be negative"},
		{[]string{"--proxy", "a", "--clusters", "3"}, "need --beside"},
		{[]string{"--proxy", "a", "--beside", "b", "--core"}, "not for --beside"},
		{[]string{"--proxy", "a", "--beside", "b", "--time", "-1s"}, "must not be negative"},
		{[]string{"--proxy", "a", "--beside", "b {nodename}"}, "--beside: there is no {nodename}"},
	} {
		var out bytes.Buffer
		_, err := run(context.Background(), append(tc.args, "--report", t.TempDir()), &out, &out)
		assert.ErrorContains(t, err, tc.want, "%v", tc.args)
	}
}

// The folder is in {kubeconfig} and {dir}, in commands that a shell reads.
func TestFoldersForTheReport(t *testing.T) {
	for _, name := range []string{"My Runs", "it's", "a;b", "a$b", "~"} {
		_, err := run(context.Background(), []string{"--proxy", "a", "--report", filepath.Join(t.TempDir(), name)},
			io.Discard, io.Discard)
		assert.ErrorContains(t, err, "--report: commands get the folder", name)
	}
	assert.False(t, strings.ContainsFunc("/srv/Berichte-für_1.37.2+x,y=z@w:%/", needsQuotes))
}

func TestTheCommandThatRepeatsARun(t *testing.T) {
	o, err := parse([]string{"--core", "--proxy", "PATH=x kp --a 'b'", "--report", "out", "--lacks", "SCTP"}, nil)
	require.NoError(t, err)
	assert.Equal(t, `go run ./cmd/judge --proxy 'PATH=x kp --a '\''b'\''' --lacks 'SCTP' --core`, o.reproduce())
	assert.Equal(t, "kp", o.implementation().Name)
}

// Every flag that changes the result is repeated.
func TestTheCommandHasEveryFlag(t *testing.T) {
	var usage bytes.Buffer
	_, err := parse([]string{"--help"}, &usage)
	require.ErrorIs(t, err, flag.ErrHelp)
	repeats := func(args ...string) map[string]bool {
		o, err := parse(args, io.Discard)
		require.NoError(t, err)
		flags := map[string]bool{}
		for _, f := range regexp.MustCompile(` --([a-z-]+)`).FindAllStringSubmatch(o.reproduce(), -1) {
			flags[f[1]] = true
		}
		return flags
	}
	all := repeats("--proxy", "p", "--cleanup", "c", "--break", "b", "--run", "x", "--core", "--assume", "masquerade-all",
		"--lacks", "l", "--speed", "1x1", "--churn", "5", "--lanes", "2", "--start-timeout", "5m", "--name", "n",
		"--version", "1",
		"--mode", "m", "--url", "u", "--seed", "7", "--even-if-busy")
	maps.Copy(all, repeats("--proxy", "p", "--beside", "q", "--beside-cleanup", "c", "--beside-name", "n", "--clusters",
		"3", "--time", "1m"))
	maps.Copy(all, repeats("--proxy", "p", "--api-server", "k", "--context", "c"))
	flags := regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(usage.String(), -1)
	require.Greater(t, len(flags), 20)
	for _, f := range flags {
		if !slices.Contains([]string{"report", "v", "merge", "page"}, f[1]) { // they change no result
			assert.True(t, all[f[1]], "--%s", f[1])
		}
	}
}

// A part without a verdict has a status of its own, unless something failed as well.
func TestTheStatusOfARun(t *testing.T) {
	judged := func(p report.Profile, v report.Verdict) report.Result { return report.Result{Profile: p, Verdict: v} }
	interrupted := judged(report.Extended, report.NotRun)
	interrupted.Interrupted = true
	passed, busy := judged(report.Core, report.Passed), judged(report.Core, report.NotJudged)
	for name, tc := range map[string]struct {
		results []report.Result
		passes  bool
		part    int
	}{
		"all":                    {[]report.Result{passed, judged(report.Core, report.NotRun)}, true, 0},
		"the machine was busy":   {[]report.Result{passed, busy, busy}, true, 2},
		"the API server refused": {[]report.Result{passed, interrupted}, true, 1},
		"only a note is missing": {[]report.Result{passed, judged(report.Note, report.NotJudged)}, true, 0},
		"something failed":       {[]report.Result{busy, judged(report.Core, report.Failed)}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			passes, err := verdict(&report.Report{Results: tc.results})
			assert.Equal(t, tc.passes, passes)
			var part *partError
			if errors.As(err, &part) {
				assert.Equal(t, tc.part, part.cases)
			} else {
				assert.Zero(t, tc.part)
			}
		})
	}
}

// A program that was not measured because the machine was too busy has not failed.
func TestTheStatusOfAMeasurement(t *testing.T) {
	r := &report.Report{Speed: &report.Speed{Runs: []report.SpeedRun{{Start: 5},
		{Problem: "too late", NotMeasured: true}}}}
	passes, err := verdict(r)
	assert.True(t, passes)
	require.EqualError(t, err, "nothing failed, but speed was not measured at 1 sizes")
	r.Speed.Runs[0].Problem = "too late"
	passes, err = verdict(r)
	require.NoError(t, err)
	assert.False(t, passes)
}

func TestSizes(t *testing.T) {
	sizes, err := parseSizes("1000x10, 5x1")
	require.NoError(t, err)
	assert.Equal(t, []program.Size{{Services: 1000, Endpoints: 10}, {Services: 5, Endpoints: 1}}, sizes)
	for _, text := range []string{"", "1000", "x", "1x", "1x1x1", "1x1,", "ax1", "1\xff"} {
		_, err := parseSizes(text)
		assert.ErrorContains(t, err, "is not a size", text)
	}
	for _, text := range []string{"0x1", "99999999x99999999"} {
		_, err := parse([]string{"--proxy", "p", "--speed", text}, io.Discard)
		assert.ErrorContains(t, err, "at least 1x1")
	}
	o, err := parse([]string{"--proxy", "p", "--speed", "2x3,4x5"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "go run ./cmd/judge --proxy 'p' --speed 2x3,4x5", o.reproduce())
}

func TestRates(t *testing.T) {
	o, err := parse([]string{"--proxy", "p", "--speed", "2x3", "--churn", "10, 1000,1"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []int{10, 1000, 1}, o.rates)
	assert.Equal(t, "go run ./cmd/judge --proxy 'p' --speed 2x3 --churn 10,1000,1", o.reproduce())
	for text, want := range map[string]string{"": "is not a number", "10,": "is not a number", "x": "is not a number",
		"1e3": "is not a number",
		"0":   "at least 1", "-5": "at least 1", "1001": "at most 1000", "10,10": "10 is given twice"} {
		_, err := parse([]string{"--proxy", "p", "--speed", "2x3", "--churn", text}, io.Discard)
		assert.ErrorContains(t, err, want, text)
	}
	_, err = parse([]string{"--proxy", "p", "--churn", "10"}, io.Discard)
	assert.ErrorContains(t, err, "--churn needs --speed")
}

func TestTheCommandThatRepeatsAComparison(t *testing.T) {
	o, err := parse([]string{"--proxy", "a {flags}", "--beside", "bin/b", "--seed", "3", "--lacks", "SCTP"}, nil)
	require.NoError(t, err)
	assert.Equal(t, `go run ./cmd/judge --proxy 'a {flags}' --beside 'bin/b' --lacks 'SCTP' --seed 3`, o.reproduce())
	assert.Equal(t, "b", o.beside.implementation().Name)
	assert.Equal(t, "SCTP", o.beside.lacks)
}

// Runs of parts of the cases become one report, which says how to repeat each.
func TestReportsAreMerged(t *testing.T) {
	folder := t.TempDir()
	var args []string
	for _, name := range []string{"a", "b"} {
		r := &report.Report{Implementation: report.Implementation{Name: "p", Command: "run " + name},
			Suite: report.SuiteVersion}
		for _, other := range []string{"a", "b"} {
			v := report.NotRun
			if other == name {
				v = report.Passed
			}
			r.Results = append(r.Results, report.Result{Case: other, Profile: report.Core, Verdict: v})
		}
		require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o755))
		require.NoError(t, write(filepath.Join(folder, name), r))
		args = append(args, "--merge", filepath.Join(folder, name, "report.yaml"))
	}
	args = append(args, "--report", filepath.Join(folder, "out"))
	passed, err := run(t.Context(), args, io.Discard, io.Discard)
	require.NoError(t, err)
	assert.True(t, passed)
	text, err := os.ReadFile(filepath.Join(folder, "out", "report.yaml"))
	require.NoError(t, err)
	r, err := report.Read(text)
	require.NoError(t, err)
	assert.Equal(t, report.Counts{Passed: 2}, r.Counts(report.Core))
	assert.Equal(t, "run a\nrun b", r.Implementation.Command)

	_, err = run(t.Context(), append(args, args[:2]...), io.Discard, io.Discard)
	require.ErrorContains(t, err, `"a" was run twice`)
	_, err = run(t.Context(), append(args, "--proxy", "p"), io.Discard, io.Discard)
	require.ErrorContains(t, err, "--merge and --page run nothing")
	_, err = run(t.Context(), []string{"--merge", filepath.Join(folder, "none"), "--report", folder},
		io.Discard, io.Discard)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Reports of any runs are shown on one page.
func TestReportsOnOnePage(t *testing.T) {
	folder := t.TempDir()
	var args []string
	for i, name := range []string{"a", "b"} {
		r := &report.Report{Implementation: report.Implementation{Name: name}, Suite: fmt.Sprint(i),
			Speed: &report.Speed{Runs: []report.SpeedRun{{Services: 5, Endpoints: 1,
				Change: report.Latency{P50: 2, P99: 3, Count: 9}}}}}
		require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o755))
		require.NoError(t, write(filepath.Join(folder, name), r))
		args = append(args, "--page", filepath.Join(folder, name, "report.yaml"))
	}
	args = append(args, "--report", filepath.Join(folder, "out; of the way"))
	passed, err := run(t.Context(), args, io.Discard, io.Discard)
	require.NoError(t, err)
	assert.True(t, passed)
	html, err := os.ReadFile(filepath.Join(folder, "out; of the way", "report.html"))
	require.NoError(t, err)
	assert.Contains(t, string(html), "5 services x 1 endpoints; a: p50 2 ms, p99 3 ms; b: p50 2 ms, p99 3 ms")
	for other, want := range map[string]string{"--merge": "choose one of them", "--proxy": "run nothing"} {
		_, err = run(t.Context(), append(args, other, "x"), io.Discard, io.Discard)
		require.ErrorContains(t, err, want)
	}
	_, err = run(t.Context(), []string{"--page", filepath.Join(folder, "none"), "--report", folder},
		io.Discard, io.Discard)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Reports of Kubernetes' own tests have such a page too, and are not merged.
func TestAPageOfKubernetesOwnTests(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "own.yaml")
	var b bytes.Buffer
	require.NoError(t, owntests.WriteYAML(&b, &owntests.Report{Tested: owntests.Tested{Name: "example-proxy"}, Selected: 1,
		Passed: 1, PassedTests: []string{"[sig-network] DNS works"}}))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	committed, err := filepath.Glob("../../testing/integration/e2e/reports/*/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, committed)
	args := []string{"--report", folder, "--page", path}
	for _, path := range committed {
		args = append(args, "--page", path)
	}
	_, err = run(t.Context(), args, io.Discard, io.Discard)
	require.NoError(t, err)
	html, err := os.ReadFile(filepath.Join(folder, "report.html"))
	require.NoError(t, err)
	assert.Contains(t, string(html), "[sig-network] DNS works")

	_, err = run(t.Context(), []string{"--merge", path, "--merge", path, "--report", folder}, io.Discard, io.Discard)
	require.ErrorContains(t, err, path+": it is about Kubernetes' own tests: --page shows it")
	suite := filepath.Join(folder, "report.yaml")
	require.NoError(t, write(folder, &report.Report{Implementation: report.Implementation{Name: "a"}}))
	_, err = run(t.Context(), append(args, "--page", suite), io.Discard, io.Discard)
	require.ErrorContains(t, err, "reports of Kubernetes' own tests need a page of their own")
	require.NoError(t, os.WriteFile(path, []byte("tested: {colour: red}"), 0o600))
	_, err = run(t.Context(), args, io.Discard, io.Discard)
	require.ErrorContains(t, err, path+": report of Kubernetes' own tests: ")
}
