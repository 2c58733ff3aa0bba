package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	nftbackend "sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// child runs one of the helper tests below in a separate process.
func child(ctx context.Context, test string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), "KPL_CONFORMANCE_CHILD="+test)
	return cmd
}

// childOnly skips a helper test unless another test runs it.
func childOnly(t *testing.T) {
	if os.Getenv("KPL_CONFORMANCE_CHILD") != t.Name() {
		t.Skip("a helper of another test")
	}
}

// needNetwork skips a test where there are no network namespaces.
func needNetwork(t *testing.T) {
	t.Helper()
	_, err := network.Families()
	need.That(t, err == nil, "network namespaces (root, or unshare -rn)")
}

// The end of a run lists cases that were not run, and outcomes accepted only because the backend lacks a feature.
func TestCasesThatAreNotRunAreListed(t *testing.T) {
	need.Program(t, "nft")
	needNetwork(t)
	t.Parallel()
	out, err := child(t.Context(), "TestChildLacksFeatures").CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := string(out)
	for _, want := range []string{
		"--- SKIP: TestChildLacksFeatures/source_ranges_guard_the_VIP_alone",
		"not run: the backend lacks SourceRanges",
		"not run: the factory has no Break",
		"NOT RUN, ",
		"  single-stack services leave the other family alone: the backend lacks IPv6",
		"  other ports of external addresses are left alone: the backend waives it",
		"  rules that somebody else removed come back: the factory has no Break",
		"--- PASS: TestChildLacksFeatures/a_cluster_IP_leads_to_all_endpoints,_of_this_node_and_others",
	} {
		assert.Contains(t, lines, want)
	}
	assert.Regexp(t, `RESULT: \d+ passed, 0 failed, \d+ not run\n`, lines)
	assert.Regexp(t, waivedText, lines)
}

func TestTheResultIsCounted(t *testing.T) {
	assert.Equal(t, "RESULT: 87 passed, 2 failed, 9 not run", resultText(98, 98, 2, 9))
	assert.Equal(t, "RESULT: 0 passed, 1 failed, 1 not run, 96 not chosen", resultText(98, 2, 1, 1))
}

// A result names the features that an author can remove from Lacks.
func TestFeaturesAreNamedAsTheirConstants(t *testing.T) {
	source, err := parser.ParseFile(token.NewFileSet(), "factory.go", nil, 0)
	require.NoError(t, err)
	features := 0
	for _, d := range source.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Feature" {
				features++
				assert.Equal(t, strconv.Quote(v.Names[0].Name), v.Values[0].(*ast.BasicLit).Value)
			}
		}
	}
	assert.Greater(t, features, 10)
}

// A backend passes if it declares in Lacks that it can do little.
func TestChildLacksFeatures(t *testing.T) {
	childOnly(t)
	complete := simpleFactory(limited)
	Test(t, Factory{New: complete.New, Lacks: []Feature{
		IPv6, SCTP, SessionAffinity, SourceRanges, Refusal, NodePortAddresses, LoopbackNodePorts, UnusedAddresses,
		StaleFlows},
		Waives: []string{bridgeCase, interfaceCase, externalPortsCase, otherNodeCase,
			"node ports follow the addresses of the host"}})
}

func TestNothingIsLeftByAProcessThatWasKilled(t *testing.T) {
	need.Program(t, "nft")
	needNetwork(t)
	cmd := child(t.Context(), "TestChildWaitsToBeKilled")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		ready = strings.Contains(lines.Text(), "ready to be killed")
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.True(t, ready)

	links, err := netlink.LinkList()
	require.NoError(t, err)
	for _, l := range links {
		assert.False(t, strings.HasPrefix(l.Attrs().Name, "kpl-"), l.Attrs().Name)
	}
	for _, dir := range []string{"/run/netns", "/var/run/netns"} {
		left, err := filepath.Glob(dir + "/kpl*")
		require.NoError(t, err)
		assert.Empty(t, left)
	}
	conn, err := nftables.New()
	require.NoError(t, err)
	tables, err := conn.ListTables()
	require.NoError(t, err)
	for _, table := range tables {
		assert.False(t, strings.HasPrefix(table.Name, "kpl_"), table.Name)
	}
}

func TestChildWaitsToBeKilled(t *testing.T) {
	childOnly(t)
	b := testbedOf(t, simpleFactory(""), 1)
	require.NoError(t, b.start(t.Context(), setup{}))
	require.NoError(t, b.step(t.Context(), firstStep()))
	fmt.Println("ready to be killed")
	select {
	case <-time.After(time.Minute):
	case <-t.Context().Done():
	}
}

func TestAFailingCaseTellsEverything(t *testing.T) {
	need.Program(t, "nft")
	b := testbedOf(t, simpleFactory(rejectsInsteadOfDrops), 1)
	b.timeouts.Quiet = time.Minute // the refusal has to come within it
	err := b.runCase(t.Context(),
		caseNamed(t, "external traffic policy Local without a local endpoint drops what comes from outside"))
	require.Error(t, err)
	for _, want := range []string{
		"flow: remote pod 10.180.3.13 -> 192.0.2.11:80/TCP (remote-3 to the external IP of web)",
		"seen: reject: ICMP error type 3 code 3 from 172.30.5.1 (connection refused)",
		"want: drop\n    192.0.2.11:80/TCP is an external IP of default/web:p0/TCP",
		"\n    the Local set is empty: drop (S25)",
		"service default/web cluster-ips=10.190.0.11,fd00:190::b",
		"endpoint default/web:p0/TCP -> 10.180.2.11:8080 sets=Cluster node=other-node",
		"table ip kpl_simple {",
	} {
		assert.True(t, strings.Contains(err.Error(), want), "the message lacks %q", want)
	}
	assert.Regexp(t, `\(connection refused\), from port \d+\n`, err.Error())
	assert.Contains(t, b.seedText(), "KPL_CONFORMANCE_SEED=1")
	assert.LessOrEqual(t, strings.Count(err.Error(), "flow: "), maxFailures)
	assert.Regexp(t, `\.\.\. and \d+ more`, err.Error())
}

func TestCasesAreIndependentOfEarlierFailures(t *testing.T) {
	need.Program(t, "nft")
	b := testbedOf(t, simpleFactory(keepsEndpoints), 1)
	before := b.timeouts
	b.timeouts.Answer = time.Second
	require.Error(t, b.runCase(t.Context(), caseNamed(t, "endpoints come and go")))
	b.timeouts = before
	require.NoError(t, b.runCase(t.Context(), caseNamed(t, "a service without endpoints refuses on every address")))
}

func caseNamed(t *testing.T, name string) testCase {
	t.Helper()
	for _, c := range slices.Concat(cases(), programCases()) {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("there is no case %q", name)
	return testCase{}
}

func TestFactoriesThatMakeNoSense(t *testing.T) {
	idle := func(context.Context, Env) (sink.Sink, error) { return new(sink.Recorder), nil }
	assert.ErrorContains(t, Factory{New: idle, Lacks: []Feature{IPv4, IPv6}}.check(), "lacks both IP families")
	assert.ErrorContains(t, Factory{}.check(), "has no New")
	assert.ErrorContains(t, Factory{New: idle, Lacks: []Feature{"Foo"}}.check(), `there is no feature "Foo"`)
	assert.ErrorContains(t, Factory{New: idle, Waives: []string{bridgeCase, "a case"}}.check(), `waives "a case"`)
	names := map[string]bool{}
	for _, c := range cases() {
		assert.False(t, names[c.name], "two cases are named %q", c.name)
		names[c.name] = true
		assert.NoError(t, Factory{New: idle, Waives: []string{c.name}}.check())
		assert.NotEmpty(t, c.missing(Factory{New: idle, Waives: []string{c.name}}), "%q is not run", c.name)
	}
	for _, name := range []string{sharedAffinityCase, unknownPortsCase, externalPortsCase, bridgeCase, interfaceCase} {
		assert.True(t, names[name], "there is no case %q", name)
	}
}

func TestInvalidFactoriesAreRejected(t *testing.T) {
	needNetwork(t)
	idle := func(context.Context, Env) (sink.Sink, error) { return new(sink.Recorder), nil }
	aCase := "a cluster IP leads to all endpoints, of this node and others"
	for _, tc := range []struct {
		name    string
		factory Factory
		run     string
		want    string
	}{
		{"New fails", Factory{New: func(context.Context, Env) (sink.Sink, error) {
			return nil,
				errors.New("no such kernel")
		}},
			aCase, "start the backend: no such kernel"},
		{"New returns nothing", Factory{New: func(context.Context, Env) (sink.Sink, error) { return nil, nil }},
			aCase, "New returned neither a sink nor an error"},
		{"New ends the goroutine, as t.FailNow does", Factory{New: func(context.Context, Env) (sink.Sink, error) {
			runtime.Goexit()
			return nil, nil
		}}, aCase, "did a function on it call t.FailNow"},
		{"the backend does nothing", Factory{New: idle}, aCase, "left the node unchanged"},
		{"there is no Dump", Factory{New: idle}, aCase, "the factory has no Dump"},
		{"Fail does not make Sync fail", withHook(func(f *Factory) {
			f.Fail = func(context.Context, Env) (func() error, error) { return func() error { return nil }, nil }
		}), "a Sync that fails loses nothing", "Fail does not make Sync fail"},
		{"Break breaks nothing", withHook(func(f *Factory) {
			f.Break = func(context.Context, Env) error { return nil }
		}), "rules that somebody else removed come back", "Break does not break anything"},
		{"Cleanup fails", withHook(func(f *Factory) {
			f.Cleanup = func(context.Context, Env) error { return errors.New("device busy") }
		}), "clean-up leaves nothing, and touches nothing of others", "clean up: device busy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := newTestbed(tc.factory, []model.Family{model.IPv4, model.IPv6}, 1)
			require.NoError(t, err)
			defer b.close()
			if tc.factory.Break != nil {
				b.timeouts.Quiet = time.Minute // right answers have to arrive within it
			}
			err = b.runCase(t.Context(), caseNamed(t, tc.run))
			require.Error(t, err)
			assert.Contains(t, err.Error(), tc.want)
		})
	}
}

// withHook is a correct factory with one function replaced. Unlike the simple backend it needs no program.
func withHook(change func(*Factory)) Factory {
	f := Factory{
		New: func(ctx context.Context, env Env) (sink.Sink, error) {
			return nftbackend.New(ctx, nftbackend.Options{Common: frontend.Common{Families: env.Families}})
		},
		Cleanup: func(ctx context.Context, env Env) error {
			return nftbackend.CleanUp(ctx, nftbackend.Options{Common: frontend.Common{Families: env.Families}})
		},
	}
	change(&f)
	return f
}

// The backend runs in the node's namespace, and can find it from other threads.
func TestBackendsRunInTheNodesNamespace(t *testing.T) {
	needNetwork(t)
	var env Env
	var here, named os.FileInfo
	b := testbedOf(t, Factory{New: func(_ context.Context, e Env) (sink.Sink, error) {
		env = e
		var err1, err2 error
		here, err1 = os.Stat("/proc/thread-self/ns/net")
		named, err2 = os.Stat(e.NetNS.Name())
		return new(sink.Recorder), errors.Join(err1, err2)
	}}, 1)
	require.NoError(t, b.start(t.Context(), setup{}))
	opened, err := env.NetNS.Stat()
	require.NoError(t, err)
	assert.True(t, os.SameFile(opened, here))
	assert.True(t, os.SameFile(opened, named))
	own, err := os.Stat("/proc/self/ns/net")
	require.NoError(t, err)
	assert.False(t, os.SameFile(opened, own), "not in the one of the test")
}

// closer is a sink that only counts its Close calls.
type closer struct {
	sink.Recorder
	open *int
}

func (c *closer) Close() error {
	*c.open--
	return nil
}

func TestEverySinkIsClosedAndCleanedUp(t *testing.T) {
	needNetwork(t)
	var open, made, cleaned int
	t.Run("testbed", func(t *testing.T) {
		b := testbedOf(t, Factory{
			New: func(context.Context, Env) (sink.Sink, error) {
				open++
				made++
				return &closer{open: &open}, nil
			},
			Cleanup: func(context.Context, Env) error {
				assert.Zero(t, open, "no sink is alive when its dataplane is cleaned up")
				cleaned++
				return nil
			},
		}, 1)
		require.NoError(t, b.start(t.Context(), setup{}))
		require.NoError(t, b.restart(t.Context()))
		require.NoError(t, b.put(t.Context(), service{}))
		assert.Equal(t, 1, open)
	})
	assert.Equal(t, 2, made)
	assert.Zero(t, open)
	assert.Equal(t, 1, cleaned)
}

// A machine without IPv6 runs the rest.
func TestTheSuiteRunsWithoutIPv6(t *testing.T) {
	need.Program(t, "nft")
	needNetwork(t)
	f := simpleFactory("")
	f.Lacks = []Feature{IPv6}
	b, err := newTestbed(f, []model.Family{model.IPv4}, 1)
	require.NoError(t, err)
	defer b.close()
	for _, name := range []string{
		"a cluster IP leads to all endpoints, of this node and others",
		"a VIP is an allowed source if the ranges name it",
		"addresses of the service CIDRs that no service has are dropped",
		"a client stays with its endpoint, at all addresses of the port",
		"UDP flows that began before the service are served",
		"clean-up leaves nothing, and touches nothing of others",
	} {
		assert.NoError(t, b.runCase(t.Context(), caseNamed(t, name)), name)
	}
	links, err := inNode(b, netlink.LinkList)
	require.NoError(t, err)
	for _, l := range links {
		addrs, err := inNode(b, func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V6) })
		require.NoError(t, err)
		for _, a := range addrs {
			assert.True(t, a.IP.IsLoopback() || a.IP.IsLinkLocalUnicast(), "the network has %v", a)
		}
	}
	require.NoError(t, b.cleanup(t.Context()))
}

// inNode calls a function in the node's namespace.
func inNode[T any](b *testbed, f func() (T, error)) (result T, err error) {
	err = b.host.Do(func() error {
		result, err = f()
		return err
	})
	return result, err
}
