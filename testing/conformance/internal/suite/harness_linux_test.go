package suite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// The end of a run lists cases that were not run, and outcomes accepted only because the backend lacks a feature.
func TestCasesThatAreNotRunAreListed(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	out, err := simple.Child(t.Context(), "TestChildLacksFeatures").CombinedOutput()
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

// A backend passes if it declares in Lacks that it can do little.
func TestChildLacksFeatures(t *testing.T) {
	simple.ChildOnly(t)
	complete := simple.Factory(simple.Limited)
	Test(t, backend.Factory{New: complete.New, Lacks: []backend.Feature{
		backend.IPv6, backend.SCTP, backend.SessionAffinity, backend.SourceRanges, backend.Refusal, backend.NodePortAddresses,
		backend.LoopbackNodePorts, backend.UnusedAddresses,
		backend.StaleFlows},
		Waives: []string{backend.BridgeCase, backend.InterfaceCase, backend.ExternalPortsCase,
			"at another node's address only the ports of a service are taken", "node ports follow the addresses of the host"}})
}

func TestNothingIsLeftByAProcessThatWasKilled(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	cmd := simple.Child(t.Context(), "TestChildWaitsToBeKilled")
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
	simple.ChildOnly(t)
	b := testbedOf(t, simple.Factory(""), 1)
	require.NoError(t, b.Start(t.Context(), cluster.Setup{}))
	require.NoError(t, b.Put(t.Context(), cluster.Service{NodePort: true,
		Endpoints: cluster.At(network.LocalPod1, network.RemotePod1)}))
	fmt.Println("ready to be killed")
	select {
	case <-time.After(time.Minute):
	case <-t.Context().Done():
	}
}

func TestAFailingCaseTellsEverything(t *testing.T) {
	need.Program(t, "nft")
	b := testbedOf(t, simple.Factory(simple.RejectsInsteadOfDrops), 1)
	b.Timeouts.Quiet = time.Minute // the refusal has to come within it
	err := runCase(t.Context(), b,
		simple.CaseNamed(t, "external traffic policy Local without a local endpoint drops what comes from outside"))
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
	assert.Contains(t, seedText(b), "KPL_CONFORMANCE_SEED=1")
	assert.LessOrEqual(t, strings.Count(err.Error(), "flow: "), testbed.MaxFailures)
	assert.Regexp(t, `\.\.\. and \d+ more`, err.Error())
}

func TestCasesAreIndependentOfEarlierFailures(t *testing.T) {
	need.Program(t, "nft")
	b := testbedOf(t, simple.Factory(simple.KeepsEndpoints), 1)
	before := b.Timeouts
	b.Timeouts.Answer = time.Second
	require.Error(t, runCase(t.Context(), b, simple.CaseNamed(t, "endpoints come and go")))
	b.Timeouts = before
	require.NoError(t, runCase(t.Context(), b,
		simple.CaseNamed(t, "a service without endpoints refuses on every address")))
}

func TestInvalidFactoriesAreRejected(t *testing.T) {
	simple.NeedNetwork(t)
	idle := func(context.Context, backend.Env) (sink.Sink, error) { return new(sink.Recorder), nil }
	aCase := "a cluster IP leads to all endpoints, of this node and others"
	for _, tc := range []struct {
		name    string
		factory backend.Factory
		run     string
		want    string
	}{
		{"New fails", backend.Factory{New: func(context.Context, backend.Env) (sink.Sink, error) {
			return nil,
				errors.New("no such kernel")
		}},
			aCase, "start the backend: no such kernel"},
		{"New returns nothing", backend.Factory{New: func(context.Context, backend.Env) (sink.Sink, error) {
			return nil,
				nil
		}},
			aCase, "New returned neither a sink nor an error"},
		{"New ends the goroutine, as t.FailNow does",
			backend.Factory{New: func(context.Context, backend.Env) (sink.Sink, error) {
				runtime.Goexit()
				return nil, nil
			}}, aCase, "did a function on it call t.FailNow"},
		{"the backend does nothing", backend.Factory{New: idle}, aCase, "left the node unchanged"},
		{"there is no Dump", backend.Factory{New: idle}, aCase, "the factory has no Dump"},
		{"Fail does not make Sync fail", withHook(func(f *backend.Factory) {
			f.Fail = func(context.Context, backend.Env) (func() error, error) { return func() error { return nil }, nil }
		}), "a Sync that fails loses nothing", "Fail does not make Sync fail"},
		{"Break breaks nothing", withHook(func(f *backend.Factory) {
			f.Break = func(context.Context, backend.Env) error { return nil }
		}), "rules that somebody else removed come back", "Break does not break anything"},
		{"Cleanup fails", withHook(func(f *backend.Factory) {
			f.Cleanup = func(context.Context, backend.Env) error { return errors.New("device busy") }
		}), "clean-up leaves nothing, and touches nothing of others", "clean up: device busy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := testbed.New(tc.factory, []model.Family{model.IPv4, model.IPv6}, 1)
			require.NoError(t, err)
			defer b.Close()
			if tc.factory.Break != nil {
				b.Timeouts.Quiet = time.Minute // right answers have to arrive within it
			}
			err = runCase(t.Context(), b, simple.CaseNamed(t, tc.run))
			require.Error(t, err)
			assert.Contains(t, err.Error(), tc.want)
		})
	}
}

// withHook is a correct factory with one function replaced. Unlike the simple backend it needs no program.
func withHook(change func(*backend.Factory)) backend.Factory {
	f := backend.Factory{
		New: func(ctx context.Context, env backend.Env) (sink.Sink, error) {
			return nftbackend.New(ctx, nftbackend.Options{Common: frontend.Common{Families: env.Families}})
		},
		Cleanup: func(ctx context.Context, env backend.Env) error {
			return nftbackend.CleanUp(ctx, nftbackend.Options{Common: frontend.Common{Families: env.Families}})
		},
	}
	change(&f)
	return f
}

// The backend runs in the node's namespace, and can find it from other threads.
func TestBackendsRunInTheNodesNamespace(t *testing.T) {
	simple.NeedNetwork(t)
	var env backend.Env
	var here, named os.FileInfo
	b := testbedOf(t, backend.Factory{New: func(_ context.Context, e backend.Env) (sink.Sink, error) {
		env = e
		var err1, err2 error
		here, err1 = os.Stat("/proc/thread-self/ns/net")
		named, err2 = os.Stat(e.NetNS.Name())
		return new(sink.Recorder), errors.Join(err1, err2)
	}}, 1)
	require.NoError(t, b.Start(t.Context(), cluster.Setup{}))
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
	simple.NeedNetwork(t)
	var open, made, cleaned int
	t.Run("testbed", func(t *testing.T) {
		b := testbedOf(t, backend.Factory{
			New: func(context.Context, backend.Env) (sink.Sink, error) {
				open++
				made++
				return &closer{open: &open}, nil
			},
			Cleanup: func(context.Context, backend.Env) error {
				assert.Zero(t, open, "no sink is alive when its dataplane is cleaned up")
				cleaned++
				return nil
			},
		}, 1)
		require.NoError(t, b.Start(t.Context(), cluster.Setup{}))
		require.NoError(t, b.Restart(t.Context()))
		require.NoError(t, b.Put(t.Context(), cluster.Service{}))
		assert.Equal(t, 1, open)
	})
	assert.Equal(t, 2, made)
	assert.Zero(t, open)
	assert.Equal(t, 1, cleaned)
}

// A machine without IPv6 runs the rest.
func TestTheSuiteRunsWithoutIPv6(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	f := simple.Factory("")
	f.Lacks = []backend.Feature{backend.IPv6}
	b, err := testbed.New(f, []model.Family{model.IPv4}, 1)
	require.NoError(t, err)
	defer b.Close()
	for _, name := range []string{
		"a cluster IP leads to all endpoints, of this node and others",
		"a VIP is an allowed source if the ranges name it",
		"addresses of the service CIDRs that no service has are dropped",
		"a client stays with its endpoint, at all addresses of the port",
		"UDP flows that began before the service are served",
		"clean-up leaves nothing, and touches nothing of others",
	} {
		assert.NoError(t, runCase(t.Context(), b, simple.CaseNamed(t, name)), name)
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
	require.NoError(t, b.Cleanup(t.Context()))
}

// inNode calls a function in the node's namespace.
func inNode[T any](b *testbed.Testbed, f func() (T, error)) (result T, err error) {
	err = b.Host.Do(func() error {
		result, err = f()
		return err
	})
	return result, err
}
