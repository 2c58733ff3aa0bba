package iptables_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestAFailureInOneFamilyLeavesTheOtherInForce(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.fakes[model.IPv6].FailRestore = func(*dataplane.Batch) error { return errors.New("made to fail") }
	r.set(backendtest.EveryFeature()...)
	err := r.trySync()
	require.ErrorContains(t, err, "made to fail")
	v4, v6 := sink.FailedFamilies(err)
	assert.False(t, v4)
	assert.True(t, v6)
	assert.Contains(t, r.dump(model.IPv4), "10.96.0.10")

	r.fakes[model.IPv6].FailRestore = nil
	r.sync() // nothing is described anew
	assert.Contains(t, r.dump(model.IPv6), "fd00:96::10")
	assert.Empty(t, r.batches(model.IPv4))
}

func TestAfterAFailedRestoreEverythingIsCompared(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.set(backendtest.EveryFeature()...)
	r.sync()
	fake := r.fakes[model.IPv4]
	fake.FailRestore = func(*dataplane.Batch) error { return errors.New("made to fail") }
	r.set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
	require.ErrorContains(t, r.trySync(), "made to fail")
	fake.FailRestore = nil
	// Something is in force that nobody asked for.
	require.NoError(t, fake.Load(strings.ReplaceAll(fake.Dump(), "--to-destination 10.244.2.20:5060", "--to-destination 10.244.2.99:1")))
	r.sync()
	assert.Contains(t, r.dump(model.IPv4), "10.244.3.5:8080")
	assert.Contains(t, r.dump(model.IPv4), "10.244.2.20:5060")
}

func TestAServiceThatIsRefusedHoldsUpNoOther(t *testing.T) {
	for name, tell := range map[string]bool{"with the line": true, "without the line": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, iptables.Options{})
			fake := r.fakes[model.IPv4]
			refuse := func(_ dataplane.Table, _, rule string) error {
				if strings.Contains(rule, "10.244.2.20:5060") || strings.Contains(rule, "-m recent") {
					return errors.New("no such match")
				}
				return nil
			}
			fake.FailRule = refuse
			if !tell {
				fake.FailRule = nil
				fake.FailRestore = func(b *dataplane.Batch) error {
					for _, table := range b.Tables {
						for _, c := range table.Chains {
							for _, rule := range c.Rules {
								if err := refuse(table.Table, c.Name, rule); err != nil {
									return err
								}
							}
						}
					}
					return nil
				}
			}
			r.set(backendtest.EveryFeature()...)
			err := r.trySync()
			var refused *iptables.RefusedError
			require.ErrorAs(t, err, &refused)
			require.ErrorContains(t, err, "voip/sip:sip/SCTP")
			require.ErrorContains(t, err, "shop/sticky:http/TCP")
			assert.NotContains(t, err.Error(), "default/web")
			dump := r.dump(model.IPv4)
			for _, there := range []string{"default/web", "default/dns", "shop/front", "shop/local"} {
				assert.Contains(t, dump, there)
			}
			assert.NotContains(t, dump, "voip/sip")
			assert.NotContains(t, dump, "PROBE")

			fake.FailRule, fake.FailRestore = nil, nil
			r.sync()
			assert.Contains(t, r.dump(model.IPv4), "voip/sip")
		})
	}
}

func TestWithoutTheMatchBPFEndpointsHaveRulesForThemselves(t *testing.T) {
	r := newRig(t, iptables.Options{})
	for _, fake := range r.fakes {
		fake.FailRule = func(_ dataplane.Table, _, rule string) error {
			if strings.Contains(rule, "-m bpf") {
				return errors.New("no such match")
			}
			return nil
		}
	}
	r.set(backendtest.EveryFeature()...)
	r.sync()
	fm.Golden(t, "testdata/no-bpf-ipv4.save", onlyLines(r.dump(model.IPv4), "POSTROUTING", "HAIRPIN", "MASQUERADE"))
	assert.Contains(t, r.dump(model.IPv6), "-s fd00:244:1::5/128 -d fd00:244:1::5/128 -j KPL-MASQUERADE")

	r.model.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	r.sync()
	assert.NotContains(t, r.dump(model.IPv6), "fd00:244:1::5")
}

func onlyLines(dump string, words ...string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		for _, w := range words {
			if strings.Contains(line, w) {
				b.WriteString(line)
				break
			}
		}
	}
	return b.String()
}

func TestDriftIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, iptables.Options{DriftInterval: time.Second})
		r.set(backendtest.EveryFeature()...)
		r.sync()
		before := r.dump(model.IPv4)
		tamper := func() { require.NoError(t, r.fakes[model.IPv4].Load("*nat\nCOMMIT\n*filter\nCOMMIT\n")) }
		tamper()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Equal(t, before, r.dump(model.IPv4))

		require.NoError(t, r.backend.CleanUp(t.Context()))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Empty(t, r.dump(model.IPv4), "what is cleaned up is not repaired")

		r.sync()
		assert.Equal(t, before, r.dump(model.IPv4))
		require.NoError(t, r.backend.Close())
		tamper()
		time.Sleep(3 * time.Second)
		assert.Empty(t, r.dump(model.IPv4), "a backend that is closed repairs nothing")
	})
}

func TestARepairThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, iptables.Options{DriftInterval: time.Second})
		r.set(backendtest.EveryFeature()...)
		r.sync()
		before := r.dump(model.IPv4)
		fake, tries := r.fakes[model.IPv4], 0
		fake.FailRestore = func(*dataplane.Batch) error {
			if tries++; tries < 4 {
				return errors.New("made to fail")
			}
			return nil
		}
		require.NoError(t, fake.Load("*nat\nCOMMIT\n"))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, before, r.dump(model.IPv4))
		assert.Equal(t, 4, tries)
	})
}

func TestACancelledSyncIsMadeUpFor(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.set(backendtest.EveryFeature()...)
	_, err := r.model.Flush(r.backend)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.backend.Sync(ctx), context.Canceled)
	r.sync()
	assert.Contains(t, r.dump(model.IPv4), "10.96.0.10")
}

// together is the IPv4 or the IPv6 half of an iptables-nft, which has one generation for both.
type together struct {
	*dataplane.Fake
	generation *atomic.Uint64
	reads      *atomic.Int64
}

func (h together) Restore(ctx context.Context, b *dataplane.Batch) error {
	h.generation.Add(1)
	return h.Fake.Restore(ctx, b)
}

func (h together) Generation(context.Context) (uint64, error) { return h.generation.Load(), nil }

func (h together) Read(ctx context.Context, table dataplane.Table, prefix string) (*dataplane.State, error) {
	h.reads.Add(1)
	return h.Fake.Read(ctx, table, prefix)
}

func TestAChangeInOneFamilyIsNotTakenForDriftInTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var generation atomic.Uint64
		var reads atomic.Int64
		b, err := iptables.New(t.Context(), iptables.Options{Sysctls: sysctl.Root(t.TempDir()), Dataplanes: []dataplane.Interface{
			together{dataplane.NewFake(model.IPv4), &generation, &reads}, together{dataplane.NewFake(model.IPv6), &generation, &reads}}})
		require.NoError(t, err)
		defer b.Close()
		var m fm.Model
		m.SetNode(backendtest.Node())
		for i := range 3 {
			m.SetService(fm.Service("default/web").ClusterIP("10.96.0.10", "fd00:96::10").Port("http", uint16(80+i)).Build())
			_, err = m.Flush(b)
			require.NoError(t, err)
			require.NoError(t, b.Sync(t.Context()))
		}
		atFirst := reads.Load()
		time.Sleep(time.Minute)
		assert.Equal(t, atFirst, reads.Load())

		generation.Add(1) // somebody else
		time.Sleep(time.Minute)
		assert.Equal(t, 2*atFirst, reads.Load(), "everything is read once")
	})
}
