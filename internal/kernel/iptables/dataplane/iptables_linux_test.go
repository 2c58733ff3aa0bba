package dataplane

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// programName is the iptables of a family and variant.
func programName(f model.Family, v Variant) string {
	if f == model.IPv6 {
		return "ip6tables-" + string(v)
	}
	return "iptables-" + string(v)
}

// needPrograms asks for what New needs, and returns the iptables of a family and variant.
func needPrograms(t testing.TB, f model.Family, v Variant) string {
	t.Helper()
	for _, suffix := range []string{"-save", "-restore"} {
		need.Program(t, programName(f, v)+suffix)
	}
	return need.Program(t, programName(f, v))
}

// eachIPTables calls test with both variants of both families, each in a network namespace of its own. It needs root
// and the programs.
func eachIPTables(t *testing.T, test func(t *testing.T, n *testkit.Namespace, ipt *IPTables)) {
	for _, f := range model.Families() {
		for _, v := range []Variant{NFT, Legacy} {
			t.Run(programName(f, v), func(t *testing.T) {
				needPrograms(t, f, v)
				n := testkit.NewNamespace(t)
				test(t, n, newIPTables(t, n, Options{Family: f, Variant: v}))
			})
		}
	}
}

func newIPTables(t testing.TB, n *testkit.Namespace, o Options) *IPTables {
	t.Helper()
	// A lock of the test's own keeps it from waiting for others, and it needs no write permission in /run.
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "xtables.lock"))
	var ipt *IPTables
	n.Do(func() (err error) { ipt, err = New(t.Context(), o); return err })
	t.Cleanup(func() {
		if err := ipt.Close(); err != nil {
			t.Error(err)
		}
	})
	return ipt
}

func TestIPTablesDoesWhatBatchesSay(t *testing.T) {
	eachIPTables(t, func(t *testing.T, _ *testkit.Namespace, ipt *IPTables) { testVerbs(t, ipt) })
}

func TestIPTablesPrintRulesAsTheyWereWritten(t *testing.T) {
	eachIPTables(t, func(t *testing.T, _ *testkit.Namespace, ipt *IPTables) { testPrintedRules(t, ipt) })
}

func TestIPTablesRefuseWrongRules(t *testing.T) {
	eachIPTables(t, func(t *testing.T, _ *testkit.Namespace, ipt *IPTables) {
		if ipt.Features().Family == model.IPv6 {
			return // the addresses are IPv4's
		}
		for table, rules := range wrongRules() {
			for _, r := range rules {
				var failed *RestoreError
				require.ErrorAs(t, ipt.Restore(t.Context(), oneRule(table, r)), &failed, "%s %s", table, r)
				assert.Equal(t, table, failed.Table, failed)
			}
		}
	})
}

// hasChain reports whether an iptables has the chain of oneRule.
func hasChain(t *testing.T, ipt *IPTables) bool {
	t.Helper()
	state, err := ipt.Read(t.Context(), NAT, "KPL-")
	require.NoError(t, err)
	_, has := state.Chains["KPL-CHAIN"]
	return has
}

func TestEverythingHappensInTheNamespaceOfNew(t *testing.T) {
	eachIPTables(t, func(t *testing.T, _ *testkit.Namespace, ipt *IPTables) {
		elsewhere := testkit.NewNamespace(t)
		other := newIPTables(t, elsewhere, ipt.options)
		before, err := other.Generation(t.Context())
		require.NoError(t, err)

		// From a thread in another namespace, and from one in the namespace in which the process lives.
		elsewhere.Do(func() error { return ipt.Restore(t.Context(), oneRule(NAT, "-j RETURN")) })
		assert.True(t, hasChain(t, ipt))
		elsewhere.Do(func() error { assert.True(t, hasChain(t, ipt)); return nil })
		assert.False(t, hasChain(t, other))
		after, err := other.Generation(t.Context())
		require.NoError(t, err)
		assert.Equal(t, before, after)
	})
}

func TestThreadsComeBackToTheirNamespace(t *testing.T) {
	n, elsewhere := testkit.NewNamespace(t), testkit.NewNamespace(t)
	var ns *namespace
	n.Do(func() (err error) { ns, err = currentNamespace(); return err })
	defer func() { assert.NoError(t, ns.Close()) }()
	elsewhere.Do(func() error {
		assert.False(t, ns.isCurrent())
		err := ns.do(func() error { assert.True(t, ns.isCurrent()); return io.EOF })
		assert.ErrorIs(t, err, io.EOF)
		assert.False(t, ns.isCurrent())
		return nil
	})
	n.Do(func() error { return ns.do(func() error { assert.True(t, ns.isCurrent()); return nil }) })
}

func TestNamespaceLastsAsLongAsIPTables(t *testing.T) {
	need.Root(t) // here: the inner test would skip itself alone
	needPrograms(t, model.IPv4, NFT)
	var ipt *IPTables
	t.Run("a namespace that nobody else holds in the end", func(inner *testing.T) {
		n := testkit.NewNamespace(inner)
		n.Do(func() (err error) { ipt, err = New(t.Context(), Options{Variant: NFT}); return err })
	})
	if ipt == nil {
		t.Skip("the inner test did not make one")
	}
	require.NoError(t, ipt.Restore(t.Context(), oneRule(NAT, "-j RETURN")))
	assert.True(t, hasChain(t, ipt))
	require.NoError(t, ipt.Close())
	assert.Error(t, ipt.Restore(t.Context(), oneRule(NAT, "-j RETURN")))
	_, err := ipt.Generation(t.Context())
	assert.Error(t, err)
}

func TestGenerationTellsOfOthers(t *testing.T) {
	eachIPTables(t, func(t *testing.T, n *testkit.Namespace, ipt *IPTables) {
		program := need.Program(t, programName(ipt.Features().Family, ipt.Features().Variant))
		// As after a restart, with a new instance that has neither read nor written anything.
		require.NoError(t, newIPTables(t, n, ipt.options).Restore(t.Context(), &Batch{Tables: []TableBatch{
			{Table: NAT, Chains: []Chain{chain("KPL-A", "-j RETURN")}, Insert: []BuiltinRule{{"OUTPUT", "-j KPL-A"}}},
			{Table: Filter, Chains: []Chain{chain("KPL-A", "-j RETURN")}},
		}}))
		for _, args := range [][]string{
			{"-t", "nat", "-F", "KPL-A"}, {"-t", "nat", "-A", "KPL-A", "-j", "ACCEPT"},
			{"-t", "nat", "-D", "OUTPUT", "-j", "KPL-A"},
			{"-t", "filter", "-F", "KPL-A"}, {"-t", "filter", "-X", "KPL-A"}, {"-t", "nat", "-F"},
		} {
			before, err := ipt.Generation(t.Context())
			require.NoError(t, err)
			again, err := ipt.Generation(t.Context())
			require.NoError(t, err)
			assert.Equal(t, before, again, "nothing was changed")
			n.Do(exec.Command(program, append([]string{"--wait"}, args...)...).Run)
			after, err := ipt.Generation(t.Context())
			require.NoError(t, err)
			assert.NotEqual(t, before, after, "%v", args)
		}
	})
}

// holdLock holds the lock of iptables-legacy until the test ends.
func holdLock(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
}

func TestRestoreEndsWithItsContext(t *testing.T) {
	needPrograms(t, model.IPv4, Legacy)
	ipt := newIPTables(t, testkit.NewNamespace(t), Options{Variant: Legacy})
	ipt.lockWait = 60
	holdLock(t) // so that restore waits
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := ipt.Restore(ctx, oneRule(NAT, "-j RETURN"))
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	var failed *RestoreError
	assert.ErrorAs(t, err, &failed)

	cancelled, stop := context.WithCancel(t.Context())
	stop()
	assert.ErrorIs(t, ipt.Restore(cancelled, oneRule(NAT, "-j RETURN")), context.Canceled)
	_, err = ipt.Read(cancelled, NAT, "KPL-")
	assert.ErrorIs(t, err, context.Canceled)
}

func TestRestoreThatDoesNotGetTheLockSaysSo(t *testing.T) {
	needPrograms(t, model.IPv4, Legacy)
	ipt := newIPTables(t, testkit.NewNamespace(t), Options{Variant: Legacy})
	ipt.lockWait = 1
	holdLock(t)
	assert.ErrorIs(t, ipt.Restore(t.Context(), oneRule(NAT, "-j RETURN")), ErrLocked)
}

func TestTablesBeforeTheOneThatFailsAreAppliedOnce(t *testing.T) {
	eachIPTables(t, func(t *testing.T, _ *testkit.Namespace, ipt *IPTables) {
		jump := BuiltinRule{"OUTPUT", "-j KPL-A"}
		batch := func(last string) *Batch {
			return &Batch{Tables: []TableBatch{
				{Table: Mangle, Chains: []Chain{chain("KPL-A")}, Insert: []BuiltinRule{jump}},
				{Table: NAT, Chains: []Chain{chain("KPL-A")}, Insert: []BuiltinRule{jump},
					Delete: []BuiltinRule{{"OUTPUT", "-j KPL-NOSUCH"}}},
				{Table: Filter, Chains: []Chain{chain("KPL-A", last)}, Insert: []BuiltinRule{jump},
					Delete: []BuiltinRule{{"OUTPUT", "-o a -j KPL-A"}, {"OUTPUT", "-o b -j KPL-A"}}},
			}}
		}
		jumps := func(table Table) []BuiltinRule {
			state, err := ipt.Read(t.Context(), table, "KPL-")
			require.NoError(t, err)
			return state.Jumps
		}
		var failed *RestoreError
		require.ErrorAs(t, ipt.Restore(t.Context(), batch("-j KPL-NOSUCH")), &failed)
		assert.Equal(t, Filter, failed.Table)
		assert.Equal(t, "-A KPL-A -j KPL-NOSUCH", failed.Text)
		assert.Equal(t, "the service of KPL-A", failed.Origin)
		assert.Equal(t, []BuiltinRule{jump}, jumps(Mangle))
		assert.Equal(t, []BuiltinRule{jump}, jumps(NAT))
		assert.Empty(t, jumps(Filter))

		require.NoError(t, ipt.Restore(t.Context(), &Batch{Tables: batch("-j RETURN").Tables[2:]}))
		assert.Equal(t, []BuiltinRule{jump}, jumps(Filter))
	})
}

func TestTableThatIPTablesCannotReadIsAnError(t *testing.T) {
	nft := need.Program(t, "nft")
	needPrograms(t, model.IPv4, NFT)
	n := testkit.NewNamespace(t)
	ipt := newIPTables(t, n, Options{Variant: NFT})
	require.NoError(t, ipt.Restore(t.Context(), oneRule(NAT, "-j RETURN")))
	n.Do(exec.Command(nft,
		"add rule ip nat KPL-CHAIN dnat to numgen inc mod 2 map { 0 : 192.0.2.1, 1 : 192.0.2.2 }").Run)
	_, err := ipt.Read(t.Context(), NAT, "KPL-")
	assert.ErrorIs(t, err, ErrIncompatible)
	require.NoError(t, ipt.Restore(t.Context(), oneRule(NAT, "-j RETURN")))
	assert.True(t, hasChain(t, ipt), "it is written all the same, and then it can be read")
}

func TestCallsFromManyGoroutines(t *testing.T) {
	eachIPTables(t, func(t *testing.T, _ *testkit.Namespace, ipt *IPTables) {
		var all sync.WaitGroup
		for i := range 8 {
			name := fmt.Sprintf("KPL-%d", i)
			all.Go(func() {
				assert.NoError(t, ipt.Restore(t.Context(),
					&Batch{Tables: []TableBatch{{Table: NAT, Chains: []Chain{chain(name, "-j RETURN")}}}}))
				_, err := ipt.Generation(t.Context())
				assert.NoError(t, err)
				state, err := ipt.Read(t.Context(), NAT, "KPL-")
				assert.NoError(t, err)
				assert.Equal(t, []string{"-j RETURN"}, state.Chains[name])
			})
		}
		all.Wait()
	})
}

func TestFakeAndIPTablesAgreeAboutRandomBatches(t *testing.T) {
	eachIPTables(t, func(t *testing.T, n *testkit.Namespace, ipt *IPTables) {
		if ipt.Features().Family == model.IPv6 {
			return // the addresses are IPv4's
		}
		program := need.Program(t, programName(model.IPv4, ipt.Features().Variant))
		r := rand.New(rand.NewPCG(7, 7))
		fake := NewFake(model.IPv4)
		taken, refused := 0, 0
		for i := range 100 {
			b := randomBatch(r)
			errFake, err := fake.Restore(t.Context(), b), ipt.Restore(t.Context(), b)
			require.Equal(t, errFake == nil, err == nil, "batch %d\n%s\nfake: %v\nreal: %v\nbefore, or after:\n%s", i,
				b, errFake, err, fake.Dump())
			if err == nil {
				taken++
			} else {
				refused++
			}
			want, err := fake.Read(t.Context(), NAT, "")
			require.NoError(t, err)
			got, err := ipt.Read(t.Context(), NAT, "")
			require.NoError(t, err)
			require.Equal(t, want, got, "batch %d\n%s", i, b)
			if i%10 == 9 { // or after a while nearly all is refused
				require.NoError(t, fake.Load("*nat\nCOMMIT\n"))
				n.Do(exec.Command(program, "--wait", "-t", "nat", "-F").Run)
				n.Do(exec.Command(program, "--wait", "-t", "nat", "-X").Run)
			}
		}
		assert.Greater(t, taken, 20)
		assert.Greater(t, refused, 20)
	})
}

func dial(t *testing.T, n *testkit.Namespace) *nfnetlink.Conn {
	t.Helper()
	var conn *nfnetlink.Conn
	n.Do(func() (err error) { conn, err = nfnetlink.Dial(nfnetlink.Config{}); return err })
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return conn
}

func TestProbeLeavesNothingBehind(t *testing.T) {
	nft := need.Program(t, "nft")
	n := testkit.NewNamespace(t)
	for _, f := range model.Families() {
		needPrograms(t, f, NFT)
		ipt := newIPTables(t, n, Options{Family: f, Variant: NFT})
		before, err := ipt.Generation(t.Context())
		require.NoError(t, err)
		require.NoError(t, probeNAT(dial(t, n), nfnetlink.Proto(f)))
		after, err := ipt.Generation(t.Context())
		require.NoError(t, err)
		assert.Equal(t, before, after)
	}
	n.Do(func() error {
		out, err := exec.Command(nft, "list", "ruleset").Output()
		assert.Empty(t, string(out))
		return err
	})
}

func TestProbeTellsWhatTheKernelLacks(t *testing.T) {
	need.Root(t)
	// As with a kernel without IPv6: there is no NAT for ARP.
	assert.ErrorIs(t, probeNAT(dial(t, testkit.NewNamespace(t)), unix.NFPROTO_ARP), ErrNoTable)
}
