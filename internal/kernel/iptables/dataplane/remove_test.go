package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

const upstream = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:OTHER - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -j OTHER
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -j MASQUERADE
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SVC-A -j KUBE-MARK-MASQ
-A KUBE-SVC-A -p tcp -j DNAT --to-destination 10.244.1.5:80
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`

func notTheMark(_ Table, chain string) bool { return chain != "KUBE-MARK-MASQ" }

func removeUpstream(t *testing.T, f *Fake) error {
	return RemoveChains(t.Context(), f, "KUBE-", notTheMark, NAT, Filter)
}

// A packet that was translated before must still be accepted and masqueraded after: see RemoveChains.
func TestWhatTranslatesIsRemovedBeforeWhatMasquerades(t *testing.T) {
	f := loaded(t, upstream)
	require.NoError(t, removeUpstream(t, f))
	var batches []string
	for _, b := range f.Batches() {
		batches = append(batches, b.String())
	}
	assert.Equal(t, []string{
		"*nat\n-D PREROUTING -j KUBE-SERVICES\n-D OUTPUT -j KUBE-SERVICES\nCOMMIT\n",
		"*nat\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n" +
			"-D POSTROUTING -j KUBE-POSTROUTING\n-X KUBE-POSTROUTING\n-X KUBE-SERVICES\n-X KUBE-SVC-A\nCOMMIT\n",
		"*filter\n:KUBE-FORWARD - [0:0]\n-D FORWARD -j KUBE-FORWARD\n-X KUBE-FORWARD\nCOMMIT\n",
	}, batches)
	assert.Equal(t, `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:OTHER - [0:0]
-A PREROUTING -j OTHER
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
`, f.Dump())
	f.ResetBatches()
	require.NoError(t, removeUpstream(t, f), "once more is no error")
	assert.Empty(t, f.Batches())
}

func TestChainsOfATableThatFailsDoNotKeepThoseOfAnother(t *testing.T) {
	f := loaded(t, upstream)
	f.FailRestore = func(b *Batch) error {
		if strings.Contains(b.String(), "*nat") {
			return errors.New("made to fail")
		}
		return nil
	}
	require.ErrorContains(t, removeUpstream(t, f), "table nat: IPv4: made to fail")
	assert.Contains(t, f.Dump(), "-A POSTROUTING -j KUBE-POSTROUTING")
	assert.NotContains(t, f.Dump(), "KUBE-FORWARD")

	err := RemoveChains(t.Context(), NewFake(model.IPv4), "KUBE-", nil, "raw")
	assert.ErrorIs(t, err, ErrNoTable)
}

// kube-proxy has several chains for each service, and each of them jumps to others.
func TestManyChainsAreRemovedInSeveralTransactions(t *testing.T) {
	var dump strings.Builder
	dump.WriteString("*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n")
	const n = 3*MaxNames + 1
	chain := func(i int) string { return fmt.Sprintf("KUBE-%06d", i) }
	for i := range n {
		fmt.Fprintf(&dump, ":%s - [0:0]\n", chain(i))
	}
	fmt.Fprintf(&dump, "-A PREROUTING -j %s\n", chain(0))
	for i := range n { // in a circle no order of removal would do
		if i != n/2 {
			fmt.Fprintf(&dump, "-A %s -j %s\n", chain(i), chain((i*7+3)%n))
		}
	}
	dump.WriteString("COMMIT\n")
	for variant, batches := range map[Variant]int{NFT: 1 + 4 + 4, Legacy: 1 + 1} { // with one for the jump
		f := loaded(t, dump.String())
		f.features.Variant = variant
		require.NoError(t, removeUpstream(t, f))
		assert.Len(t, f.Batches(), batches, variant)
		assert.NotContains(t, f.Dump(), "KUBE-")
	}
}

func TestAChainThatCannotGoKeepsNobodyElse(t *testing.T) {
	for _, f := range model.Families() {
		t.Run(f.String(), func(t *testing.T) { testChainsInUse(t, NewFake(f), 1) })
	}
	t.Run("in several transactions", func(t *testing.T) { testChainsInUse(t, NewFake(model.IPv4), MaxNames) })
}

// testChainsInUse removes chains, to some of which others jump, from an iptables whose table nat is empty. It has so
// many chains of services.
func testChainsInUse(t *testing.T, ipt Interface, services int) {
	t.Helper()
	table := TableBatch{
		Table: NAT,
		Chains: []Chain{
			{Name: "KUBE-SERVICES", Rules: []string{"-j KUBE-SVC-0"}},
			{Name: "KUBE-POSTROUTING", Rules: []string{"-j MASQUERADE"}},
			{Name: "KUBE-SEP-0", Rules: []string{"-j KUBE-MARK-MASQ"}},
			{Name: "KUBE-MARK-MASQ", Rules: []string{"-j RETURN"}},
			{Name: "OTHER", Rules: []string{"-p tcp -j KUBE-SEP-0", "-p udp -j KUBE-SEP-0", "-j KUBE-MARK-MASQ"}},
			{Name: "ANOTHER", Rules: []string{"-g KUBE-SEP-0", "-j KUBE-SERVICES"}},
		},
		Insert: []BuiltinRule{{"PREROUTING", "-j KUBE-SERVICES"}, {"POSTROUTING", "-j KUBE-POSTROUTING"},
			{"OUTPUT", "-j OTHER"}},
	}
	for i := range services {
		table.Chains = append(table.Chains, Chain{Name: fmt.Sprintf("KUBE-SVC-%d", i), Rules: []string{"-j KUBE-SEP-0"}})
	}
	require.NoError(t, ipt.Restore(t.Context(), &Batch{Tables: []TableBatch{table}}))
	for range 2 { // once more is the same
		err := RemoveChains(t.Context(), ipt, "KUBE-", notTheMark, NAT, Filter)
		var inUse *InUseError
		require.ErrorAs(t, err, &inUse)
		require.EqualError(t, err, "table nat: chains of others jump to chains that are left, empty: "+
			"KUBE-SEP-0 (from ANOTHER, OTHER), KUBE-SERVICES (from ANOTHER)")
		state, err := ipt.Read(t.Context(), NAT, "")
		require.NoError(t, err)
		assert.Equal(t, &State{
			Chains: map[string][]string{
				"KUBE-MARK-MASQ": {"-j RETURN"},
				"KUBE-SEP-0":     nil,
				"KUBE-SERVICES":  nil,
				"OTHER":          {"-p tcp -j KUBE-SEP-0", "-p udp -j KUBE-SEP-0", "-j KUBE-MARK-MASQ"},
				"ANOTHER":        {"-g KUBE-SEP-0", "-j KUBE-SERVICES"},
			},
			Jumps: []BuiltinRule{{"OUTPUT", "-j OTHER"}},
		}, state)
	}
	require.NoError(t, ipt.Restore(t.Context(), &Batch{Tables: []TableBatch{{Table: NAT, Chains: []Chain{
		{Name: "OTHER"}, {Name: "ANOTHER"}}}}}))
	require.NoError(t, RemoveChains(t.Context(), ipt, "KUBE-", notTheMark, NAT, Filter))
	state, err := ipt.Read(t.Context(), NAT, "KUBE-")
	require.NoError(t, err)
	assert.Equal(t, map[string][]string{"KUBE-MARK-MASQ": {"-j RETURN"}}, state.Chains)
}

func TestAnErrorAboutManyChainsIsShort(t *testing.T) {
	var dump strings.Builder
	dump.WriteString("*nat\n:OUTPUT ACCEPT [0:0]\n:OTHER - [0:0]\n")
	for i := range 12 {
		fmt.Fprintf(&dump, ":KUBE-%02d - [0:0]\n-A OTHER -j KUBE-%02d\n", i, i)
	}
	dump.WriteString("COMMIT\n")
	err := removeUpstream(t, loaded(t, dump.String()))
	assert.ErrorContains(t, err, "KUBE-09 (from OTHER), and 2 more")
	assert.NotContains(t, err.Error(), "KUBE-10")
}

// hidden is an iptables that does not print rules of some chains, and refuses to remove those to which they jump.
type hidden struct {
	*Fake
	inUse    []string
	attempts int
}

func (h *hidden) Restore(ctx context.Context, b *Batch) error {
	h.attempts++
	l := b.find(func(l line) bool { return l.verb == "-X" && slices.Contains(h.inUse, l.chain) })
	if l.number == 0 {
		return h.Fake.Restore(ctx, b)
	}
	failed := &RestoreError{Err: errors.New("the chain is in use")}
	failed.at(b, l)
	return failed
}

func TestChainsInUseByARuleThatIPTablesCannotPrint(t *testing.T) {
	h := &hidden{Fake: loaded(t, upstream), inUse: []string{"KUBE-SVC-A", "KUBE-POSTROUTING"}}
	err := RemoveChains(t.Context(), h, "KUBE-", notTheMark, NAT, Filter)
	require.EqualError(t, err, "table nat: chains of others jump to chains that are left, empty: "+
		"KUBE-POSTROUTING (from a rule made with nft), KUBE-SVC-A (from a rule made with nft)")
	assert.NotContains(t, h.Dump(), "KUBE-SERVICES")
	assert.NotContains(t, h.Dump(), "-A KUBE-SVC-A")
	assert.Contains(t, h.Dump(), ":KUBE-SVC-A")

	// Each of them costs an attempt, so that there is an end to it.
	h = &hidden{Fake: NewFake(model.IPv4)}
	chains := make([]Chain, 2*maxUnseen)
	for i := range chains {
		chains[i].Name = fmt.Sprintf("KUBE-%d", i)
		h.inUse = append(h.inUse, chains[i].Name)
	}
	require.NoError(t, h.Fake.Restore(t.Context(), &Batch{Tables: []TableBatch{{Table: NAT, Chains: chains}}}))
	err = RemoveChains(t.Context(), h, "KUBE-", notTheMark, NAT)
	require.ErrorContains(t, err, "the chain is in use")
	var inUse *InUseError
	require.NotErrorAs(t, err, &inUse)
	assert.Equal(t, 1+1+maxUnseen, h.attempts)
}
