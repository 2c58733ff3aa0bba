package iptables_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	goiptables "github.com/coreos/go-iptables/iptables"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// needPrograms asks for what the backend runs.
func needPrograms(t testing.TB, v dataplane.Variant) {
	for _, family := range []string{"iptables-", "ip6tables-"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			need.Program(t, family+string(v)+suffix)
		}
	}
}

// needCounters needs the kernel's counters of packets and the match for them, which the kernels of some distributions
// lack.
func needCounters(t testing.TB, v dataplane.Variant) {
	t.Helper()
	name := iptables.CounterNames()[0]
	chain := dataplane.Chain{Name: "KPL-PROBE", Rules: []string{dataplane.CountWith(name) + "-j RETURN"}}
	b := &dataplane.Batch{Tables: []dataplane.TableBatch{{Table: dataplane.Filter, Chains: []dataplane.Chain{chain}}}}
	var err error
	testkit.NewNamespace(t).Do(func() error {
		var d *dataplane.IPTables
		if d, err = dataplane.New(t.Context(), dataplane.Options{Variant: v}); err == nil {
			err = errors.Join(d.EnsureCounter(name), d.Restore(t.Context(), b), d.Close())
		}
		return nil
	})
	need.That(t, err == nil, fmt.Sprintf("nfnetlink_acct and xt_nfacct of the kernel (%v)", err))
}

// eachVariant runs a test for both variants at once: the namespaces are different ones. Tests of one variant run one
// after the other, because all of iptables-legacy share a lock.
func eachVariant(t *testing.T, f func(t *testing.T, v dataplane.Variant)) {
	for _, v := range []dataplane.Variant{dataplane.NFT, dataplane.Legacy} {
		t.Run(string(v), func(t *testing.T) {
			needPrograms(t, v)
			t.Parallel()
			f(t, v)
		})
	}
}

// midway is an iptables that, on request, applies only the first table of a batch.
type midway struct {
	dataplane.Interface
	failing *atomic.Bool
}

func (m midway) Restore(ctx context.Context, b *dataplane.Batch) error {
	if !m.failing.Load() {
		return m.Interface.Restore(ctx, b)
	}
	if len(b.Tables) > 0 {
		if err := m.Interface.Restore(ctx, &dataplane.Batch{Tables: b.Tables[:1]}); err != nil {
			return err
		}
	}
	return errors.New("made to fail")
}

// withoutBPF is an iptables of a kernel that has no match bpf.
type withoutBPF struct{ dataplane.Interface }

func (w withoutBPF) Restore(ctx context.Context, b *dataplane.Batch) error {
	if strings.Contains(b.String(), "-m bpf") {
		return &dataplane.RestoreError{Err: errors.New("no such match")}
	}
	return w.Interface.Restore(ctx, b)
}

func factory(t testing.TB, v dataplane.Variant) conformance.Factory { return factoryWith(t, v, false) }

func factoryWith(t testing.TB, v dataplane.Variant, noBPF bool) conformance.Factory {
	need.Program(t, "iptables-"+string(v))
	var failing atomic.Bool
	return conformance.Factory{
		New: func(ctx context.Context, env conformance.Env) (sink.Sink, error) {
			var dataplanes []dataplane.Interface
			var closers []io.Closer
			for _, f := range env.Families {
				d, err := dataplane.New(ctx, dataplane.Options{Family: f, Variant: v})
				if err != nil {
					return nil, err
				}
				closers = append(closers, d)
				var narrow dataplane.Interface = d
				if noBPF {
					narrow = withoutBPF{d}
				}
				dataplanes = append(dataplanes, midway{narrow, &failing})
			}
			b, err := iptables.New(ctx,
				iptables.Options{Dataplanes: dataplanes, LocalhostNodePorts: env.LocalhostNodePorts,
					Common: frontend.Common{NodePortAddresses: env.NodePorts}})
			if err != nil {
				return nil, err
			}
			closers = append([]io.Closer{b}, closers...)
			return backendtest.CleanFlows(ctx, env.NetNS.Fd(), env.Families, b, closers...), nil
		},
		Fail: func(context.Context, conformance.Env) (func() error, error) {
			failing.Store(true)
			return func() error { failing.Store(false); return nil }, nil
		},
		Cleanup: func(ctx context.Context, env conformance.Env) error {
			return iptables.CleanUp(ctx, iptables.Options{Common: frontend.Common{Families: env.Families}}.Of(v))
		},
		Dump: func(_ context.Context, env conformance.Env) (string, error) { return dump(v, env.Families) },
		Break: func(context.Context, conformance.Env) error {
			ipt, err := somebodyElse(model.IPv4, v)
			if err != nil {
				return err
			}
			return ipt.ClearChain("nat", "KPL-SERVICES")
		},
		RepairsItself: true,
		Lacks:         []conformance.Feature{conformance.UnusedAddresses},
		Waives: []string{ // loopback addresses are served by rules
			"a proxy serves node ports on 127.0.0.1 and ::1",
			"a proxy of node ports on loopback addresses keeps to the node with traffic policy Local",
			"a pod's host port does not take a node port", // both are chains of table nat: the order of the jumps decides
			// Tables of nftables have chains of the same priority as table nat.
			"another program's table of nftables takes nothing that is for a service, whoever was first",
		},
	}
}

// somebodyElse is another program that reads and changes the rules of a family: unlike the backend it asks iptables
// itself, chain by chain.
func somebodyElse(f model.Family, v dataplane.Variant) (*goiptables.IPTables, error) {
	name, protocol := "iptables-"+string(v), goiptables.ProtocolIPv4
	if f == model.IPv6 {
		name, protocol = "ip6"+name[2:], goiptables.ProtocolIPv6
	}
	path, found := need.Find(name)
	if !found {
		return nil, fmt.Errorf("%s: %w", name, exec.ErrNotFound)
	}
	return goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(path))
}

// dump returns the rules and our chains, of all tables, as another program reads them.
func dump(v dataplane.Variant, families []model.Family) (string, error) {
	var b strings.Builder
	for _, f := range families {
		ipt, err := somebodyElse(f, v)
		if err != nil {
			return "", err
		}
		for _, table := range []string{"nat", "filter", "mangle"} {
			chains, err := ipt.ListChains(table)
			if err != nil {
				return "", err
			}
			for _, c := range chains {
				rules, err := ipt.List(table, c)
				if err != nil {
					return "", err
				}
				for _, rule := range rules {
					if strings.HasPrefix(rule, "-A") || strings.HasPrefix(rule, "-N KPL") {
						fmt.Fprintln(&b, f, table, rule)
					}
				}
			}
		}
	}
	return b.String(), nil
}

func TestConformance(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) { conformance.Test(t, factory(t, v)) })
}

// TestRandomClustersWithoutBPF runs the random clusters on a kernel that has no match bpf, as far as the backend can
// tell: pods that reach themselves are the only difference.
func TestRandomClustersWithoutBPF(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		conformance.Random(t, factoryWith(t, v, true), uint64(backendtest.Number(t, "KPL_SEED", 2)),
			backendtest.Number(t, "KPL_RUNS", 5))
	})
}

// TestRandomClusters compares with the oracle on random clusters and changes. KPL_SEED and KPL_RUNS make it another or
// a longer one.
func TestRandomClusters(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		conformance.Random(t, factory(t, v), uint64(backendtest.Number(t, "KPL_SEED", 1)),
			backendtest.Number(t, "KPL_RUNS", 15))
	})
}
