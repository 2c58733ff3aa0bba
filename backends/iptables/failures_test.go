package iptables_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A family that fails costs the other nothing, and is not compared as a whole with every change.
func TestAFailedFamilyIsLeftAloneUntilItsRetry(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	attempts := 0
	fail := func(*dataplane.Batch) error {
		attempts++
		return errors.New("made to fail")
	}
	r.fakes[model.IPv6].FailRestore = fail
	changes := 0
	change := func() error {
		changes++
		r.Set(fm.Service(fmt.Sprintf("default/more-%d", changes)).ClusterIP(fmt.Sprintf("10.96.77.%d", changes),
			fmt.Sprintf("fd00:96::77:%d", changes)).Port("http", 80).Build())
		r.fakes[model.IPv4].ResetBatches()
		attempts = 0
		return r.Wave(t.Context())
	}
	first := change()
	require.ErrorContains(t, first, "made to fail")
	one := len(r.fakes[model.IPv4].Batches())
	require.Positive(t, one)
	for range 3 {
		require.EqualError(t, change(), first.Error())
		require.Zero(t, attempts)
		require.Len(t, r.fakes[model.IPv4].Batches(), one)
	}
	r.backend.ResyncFailed()
	require.ErrorContains(t, change(), "made to fail")
	require.Positive(t, attempts)
	require.Len(t, r.fakes[model.IPv4].Batches(), one)
	r.fakes[model.IPv6].FailRestore = nil
	r.backend.ResyncFailed()
	require.NoError(t, change())
	for i := range changes {
		require.Contains(t, r.dump(model.IPv6), fmt.Sprintf("fd00:96::77:%d/128", i+1))
	}
}

func TestAFailureInOneFamilyLeavesTheOtherInForce(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.fakes[model.IPv6].FailRestore = func(*dataplane.Batch) error { return errors.New("made to fail") }
	r.Set(backendtest.EveryFeature()...)
	err := r.TrySync()
	require.ErrorContains(t, err, "made to fail")
	assert.Equal(t, model.IPv6.Set(), sink.FailedFamilies(err))
	assert.Contains(t, r.dump(model.IPv4), "10.96.0.10")

	r.fakes[model.IPv6].FailRestore = nil
	r.Sync() // nothing is described anew
	assert.Contains(t, r.dump(model.IPv6), "fd00:96::10")
	assert.Empty(t, r.batches(model.IPv4))
}

func TestAfterAFailedRestoreEverythingIsCompared(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	fake := r.fakes[model.IPv4]
	fake.FailRestore = func(*dataplane.Batch) error { return errors.New("made to fail") }
	r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
	require.ErrorContains(t, r.TrySync(), "made to fail")
	fake.FailRestore = nil
	// A rule is active that is not wanted.
	require.NoError(t, fake.Load(strings.ReplaceAll(fake.Dump(), "--to-destination 10.244.2.20:5060",
		"--to-destination 10.244.2.99:1")))
	r.Sync()
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
			r.Set(backendtest.EveryFeature()...)
			err := r.TrySync()
			var refused *sink.PortError
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
			r.Sync()
			assert.Contains(t, r.dump(model.IPv4), "voip/sip")
		})
	}
}

// While the backend searches for the rules that were refused, something fails that has nothing to do with rules: no
// service port is left out for that.
func TestWhatHoldsUpASearchIsNobodysFault(t *testing.T) {
	for name, at := range map[string]struct {
		first, last int // of the restores: the second one is the first try
		fault       error
	}{
		"the lock, when all rules are tried":    {4, 4, dataplane.ErrLocked},
		"the lock, when half of them are tried": {5, 5, dataplane.ErrLocked},
		"no program can be started any more":    {5, 99, syscall.EAGAIN},
		"the lock, when the match bpf is tried": {3, 3, dataplane.ErrLocked},
		"the table cannot be read any more":     {5, 99, dataplane.ErrIncompatible},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, iptables.Options{})
			fake := r.fakes[model.IPv4]
			r.Set(backendtest.EveryFeature()...)
			r.Sync()
			before := r.dump(model.IPv4)
			restores := 0
			fake.FailRestore = func(*dataplane.Batch) error {
				restores++
				switch {
				case restores == 1 || restores == 4 && at.first > 4:
					return errors.New("refused")
				case at.first <= restores && restores <= at.last:
					return at.fault
				}
				return nil
			}
			r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
			err := r.TrySync()
			require.ErrorContains(t, err, "refused")
			var left *sink.PortError
			assert.False(t, errors.As(err, &left), err)
			assert.Contains(t, r.dump(model.IPv4), "default/web:http")

			fake.FailRestore = nil
			r.Sync()
			assert.Contains(t, r.dump(model.IPv4), "10.244.3.5:8080")
			assert.Contains(t, r.dump(model.IPv4), "-m bpf")
			r.Delete(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
			r.Sync()
			assert.Equal(t, before, r.dump(model.IPv4))
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
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	fm.Golden(t, "testdata/no-bpf-ipv4.save", onlyLines(r.dump(model.IPv4), "POSTROUTING", "HAIRPIN", "MASQUERADE"))
	assert.Contains(t, r.dump(model.IPv6), "-s fd00:244:1::5/128 -d fd00:244:1::5/128 -j KPL-MASQUERADE")

	r.Delete(model.ServiceName{Namespace: "default", Name: "web"})
	r.Sync()
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
		r := newRig(t, iptables.Options{}.CheckingEvery(time.Second))
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
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

		r.Sync()
		assert.Equal(t, before, r.dump(model.IPv4))
		require.NoError(t, r.backend.Close())
		tamper()
		time.Sleep(3 * time.Second)
		assert.Empty(t, r.dump(model.IPv4), "a backend that is closed repairs nothing")
	})
}

func TestARepairThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, iptables.Options{}.CheckingEvery(time.Second))
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
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

// meddled is a dataplane where something happens before it is read, when it is asked for its generation, and after it
// was changed.
type meddled struct {
	*dataplane.Fake
	read       func(context.Context) error
	generation func()
	restored   func()
}

func (m *meddled) Read(ctx context.Context, table dataplane.Table, prefix string) (*dataplane.State, error) {
	if m.read != nil {
		if err := m.read(ctx); err != nil {
			return nil, err
		}
	}
	return m.Fake.Read(ctx, table, prefix)
}

func (m *meddled) Generation(ctx context.Context) (uint64, error) {
	if m.generation != nil {
		m.generation()
	}
	return m.Fake.Generation(ctx)
}

func (m *meddled) Restore(ctx context.Context, b *dataplane.Batch) error {
	err := m.Fake.Restore(ctx, b)
	if m.restored != nil {
		m.restored()
	}
	return err
}

// newMeddledRig is a rig for IPv4 that checks for drift each second.
func newMeddledRig(t *testing.T) (*rig, *meddled) {
	fake := dataplane.NewFake(model.IPv4)
	m := &meddled{Fake: fake}
	r := &rig{t: t, fakes: map[model.Family]*dataplane.Fake{model.IPv4: fake}, options: iptables.Options{
		Common:     frontend.Common{Sysctls: sysctl.Root(t.TempDir())},
		Dataplanes: []dataplane.Interface{m}}.CheckingEvery(time.Second)}
	return r.start(), m
}

func TestARepairThatCannotReadIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newMeddledRig(t)
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		before := r.dump(model.IPv4)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		failures := 0
		m.read = func(context.Context) error {
			if failures++; failures <= 3 {
				return errors.New("made to fail")
			}
			return nil
		}
		require.NoError(t, m.Load("*nat\nCOMMIT\n*filter\nCOMMIT\n"))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, before, r.dump(model.IPv4))
	})
}

func TestARepairThatHangsIsGivenUpAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newMeddledRig(t)
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		before, hangs := r.dump(model.IPv4), 1
		m.read = func(ctx context.Context) error {
			if hangs--; hangs >= 0 {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
		require.NoError(t, m.Load("*nat\nCOMMIT\n*filter\nCOMMIT\n"))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		assert.Equal(t, before, r.dump(model.IPv4))
	})
}

// With nft, another program may add a rule that iptables cannot print. iptables can still change the table.
func TestATableThatCannotBeReadIsWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newMeddledRig(t)
		m.read = func(context.Context) error { return dataplane.ErrIncompatible }
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		before := r.dump(model.IPv4)
		require.Contains(t, before, "10.244.2.20:5060")
		r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
		r.Sync()
		assert.Contains(t, r.dump(model.IPv4), "10.244.3.5:8080")
		assert.Less(t, len(r.batches(model.IPv4)), 2000, "a change costs no more than else")

		require.NoError(t, m.Load(before)) // another program
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.NotContains(t, r.dump(model.IPv4), "10.244.3.5:8080",
			"everything would have to be written for each change of others")
		r.backend.ForceResync()
		r.Sync()
		assert.Contains(t, r.dump(model.IPv4), "10.244.3.5:8080")

		r.Restart()
		r.Sync()
		dump := r.dump(model.IPv4)
		assert.Equal(t, 1, strings.Count(dump, "-A PREROUTING "), "no jump is there twice")
		synctest.Wait()
		m.read = nil
		r.backend.ForceResync()
		r.Sync()
		assert.Equal(t, dump, r.dump(model.IPv4))
	})
}

// A rule that another program removes while we write comes back, for example when a firewall is loaded at the same
// moment.
func TestWhatOthersRemoveDuringAChangeComesBack(t *testing.T) {
	const rule = "-A KPL-M-TCP -d 198.51.100.1/32" // of a chain that does not change
	for name, meddle := range map[string]func(r *rig, m *meddled, remove func()){
		"at the start": func(r *rig, m *meddled, remove func()) {
			m.restored = func() {
				m.restored = nil
				remove()
			}
		},
		"before a later change": func(r *rig, m *meddled, remove func()) {
			r.Sync()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			asked := 0
			m.generation = func() {
				if asked++; asked == 2 { // the first one is to see whether anything is to be read
					remove()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := newMeddledRig(t)
				r.Set(backendtest.EveryFeature()...)
				meddle(r, m, func() {
					dump := m.Dump()
					require.Contains(t, dump, rule)
					require.NoError(t, m.Load(onlyLinesWithout(dump, rule)))
				})
				r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
				r.Sync()
				require.NotContains(t, r.dump(model.IPv4), rule)
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Contains(t, r.dump(model.IPv4), rule)
			})
		})
	}
}

func onlyLinesWithout(dump, word string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		if !strings.Contains(line, word) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestACancelledSyncIsMadeUpFor(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Wave(ctx), context.Canceled)
	r.Sync()
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
		b, err := iptables.New(t.Context(),
			iptables.Options{Common: frontend.Common{Sysctls: sysctl.Root(t.TempDir())}, Dataplanes: []dataplane.Interface{
				together{dataplane.NewFake(model.IPv4), &generation, &reads},
				together{dataplane.NewFake(model.IPv6), &generation, &reads}}})
		require.NoError(t, err)
		defer b.Close()
		d := fm.NewDriver(t, fm.Options{NewSink: func() sink.Sink { return b }})
		d.Set(backendtest.Node())
		for i := range 3 {
			d.Set(fm.Service("default/web").ClusterIP("10.96.0.10", "fd00:96::10").Port("http",
				uint16(80+i)).Build())
			d.Sync()
		}
		atFirst := reads.Load()
		time.Sleep(time.Minute)
		assert.Equal(t, 2*atFirst, reads.Load(), "everything is looked at once more after it was first applied")
		time.Sleep(time.Minute)
		assert.Equal(t, 2*atFirst, reads.Load())

		generation.Add(1) // another program
		time.Sleep(time.Minute)
		assert.Equal(t, 3*atFirst, reads.Load(), "everything is read once")
	})
}

// Looking once more at what was just written says nothing about how much others change.
func TestOnlyWhatOthersChangeInVainMakesDriftWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newMeddledRig(t)
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		synctest.Wait()
		m.read = func(context.Context) error { // two tables, 2 s: a pause of 200 s
			time.Sleep(time.Second)
			return nil
		}
		before := r.dump(model.IPv4)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		tamper := func() { require.NoError(t, m.Load("*nat\nCOMMIT\n*filter\nCOMMIT\n")) }
		tamper()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, before, r.dump(model.IPv4), "nobody had changed anything before")

		time.Sleep(time.Minute)
		require.NoError(t, m.Load(before)) // somebody changes nothing of ours
		time.Sleep(10 * time.Second)
		synctest.Wait()
		tamper()
		time.Sleep(100 * time.Second)
		synctest.Wait()
		assert.NotEqual(t, before, r.dump(model.IPv4), "the node is busy with other things")
		time.Sleep(150 * time.Second)
		synctest.Wait()
		assert.Equal(t, before, r.dump(model.IPv4))
	})
}
