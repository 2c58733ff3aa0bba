package nft_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

func options(env conformance.Env) nft.Options {
	// No prefix means every address to the suite, and the node's own to the backend.
	return nft.Options{Common: frontend.Common{Families: env.Families, NodePortAddresses: env.NodePorts}}
}

// midway is a kernel that fails while it is told to, all transactions but the first one.
type midway struct {
	*dataplane.Netlink
	failing *atomic.Int32 // 0: not; otherwise counts the transactions
}

func (m midway) Apply(ctx context.Context, tx *dataplane.Transaction) error {
	if m.failing.Load() != 0 && m.failing.Add(1) > 2 {
		return errors.New("made to fail")
	}
	return m.Netlink.Apply(ctx, tx)
}

// closing closes the backend's dataplane with it.
type closing struct {
	*nft.Backend
	dataplane io.Closer
}

func (c closing) Close() error { return errors.Join(c.Backend.Close(), c.dataplane.Close()) }

// backend is a sink that is closed.
type backend interface {
	sink.Sink
	io.Closer
}

// tee is the backend with another one beside it.
type tee struct {
	*sink.TeeSink
	close func() error
}

func (t tee) Close() error { return t.close() }

// loopback puts a proxy for node ports on loopback addresses beside a backend, if the node is to have one.
func loopback(ctx context.Context, env conformance.Env, kernel backend) (backend, error) {
	if !env.LoopbackProxy {
		return kernel, nil
	}
	proxy, err := userspace.NewLoopback(ctx, userspace.Options{
		Common: frontend.Common{Families: env.Families, NodePortAddresses: env.NodePorts,
			Host: &hostaddr.System{NetNS: int(env.NetNS.Fd())}},
		Open: env.Do,
	})
	if err != nil {
		return nil, err
	}
	return tee{sink.Tee(kernel, proxy), func() error { return errors.Join(proxy.Close(), kernel.Close()) }}, nil
}

func factory() conformance.Factory {
	var failing atomic.Int32
	return conformance.Factory{
		New: func(ctx context.Context, env conformance.Env) (sink.Sink, error) {
			netlink, err := dataplane.NewNetlink()
			if err != nil {
				return nil, err
			}
			o := options(env)
			o.Dataplane = midway{netlink, &failing}
			b, err := nft.New(ctx, o)
			if err != nil {
				return nil, errors.Join(err, netlink.Close())
			}
			beside, err := loopback(ctx, env, closing{b, netlink})
			if err != nil {
				return nil, errors.Join(err, b.Close(), netlink.Close())
			}
			return backendtest.CleanFlows(ctx, env.NetNS.Fd(), env.Families, beside, beside), nil
		},
		Fail: func(context.Context, conformance.Env) (func() error, error) {
			failing.Store(1)
			return func() error { failing.Store(0); return nil }, nil
		},
		Cleanup: func(ctx context.Context, env conformance.Env) error { return nft.CleanUp(ctx, options(env)) },
		Dump:    func(ctx context.Context, _ conformance.Env) (string, error) { return backendtest.Ruleset(ctx) },
		Break: func(context.Context, conformance.Env) error {
			table := &nftables.Table{Name: nft.DefaultTableName, Family: nftables.TableFamilyIPv4}
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.FlushSet(&nftables.Set{Table: table, Name: "service-ips"})
			return conn.Flush()
		},
		RepairsItself: true,
		// Loopback addresses are served by the proxy beside the backend.
		Waives: []string{
			"node ports are served on 127.0.0.1, and never on ::1",
			"the node's primary address and localhost add up",
			"localhost alone is no other address of either family",
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Test(t, factory())
}

// TestRandomClusters compares with the oracle on random clusters and changes. KPL_SEED and KPL_RUNS make it another or
// a longer one.
func TestRandomClusters(t *testing.T) {
	t.Parallel()
	seed := uint64(backendtest.Number(t, "KPL_SEED", 1))
	conformance.Random(t, factory(), seed, backendtest.Number(t, "KPL_RUNS", 40))
}
