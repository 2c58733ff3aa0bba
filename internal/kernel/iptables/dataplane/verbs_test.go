package dataplane

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// step is a batch and what must come of it.
type step struct {
	name  string
	batch TableBatch
	// refused is a part of the text of the line that is at fault, "" if the batch is to be taken. Then nothing changes.
	refused, origin string
	byKernel        bool // is refused at COMMIT
	byContent       bool // is refused by those who read rules: the fake does not
	// chains and jumps are there then.
	chains   map[string][]string
	jumps    []BuiltinRule
	sameSize bool // as before
}

func chain(name string, rules ...string) Chain {
	return Chain{Name: name, Rules: rules, Origin: "the service of " + name}
}

// anyLine: the rule at fault is not in the batch.
const anyLine = "any line"

// verbs are all things that can be done to a table, one after the other.
func verbs() []step {
	jump := func(builtin, rule string) BuiltinRule { return BuiltinRule{Chain: builtin, Rule: rule} }
	in, out := jump("PREROUTING", "-j KPL-SERVICES"),
		jump("OUTPUT", `-m comment --comment "of -j nobody" -j KPL-SERVICES`)
	two := map[string][]string{"KPL-SERVICES": {"-j KPL-ONE"}, "KPL-ONE": {"-j RETURN"}}
	return []step{
		{name: "a chain is made and filled, and may jump to one that comes later",
			batch:  TableBatch{Chains: []Chain{chain("KPL-SERVICES", "-j KPL-ONE"), chain("KPL-ONE", "-j RETURN")}},
			chains: two},
		{name: "jumps are put into built-in chains",
			batch:  TableBatch{Insert: []BuiltinRule{in, out}},
			chains: two, jumps: []BuiltinRule{in, out}},
		{name: "a chain that is given again gets new rules",
			batch:  TableBatch{Chains: []Chain{chain("KPL-ONE", "-j ACCEPT", "-j ACCEPT")}},
			chains: map[string][]string{"KPL-SERVICES": {"-j KPL-ONE"}, "KPL-ONE": {"-j ACCEPT", "-j ACCEPT"}},
			jumps:  []BuiltinRule{in, out}},
		{name: "inserted rules stand at the head in the order of the list",
			batch: TableBatch{Insert: []BuiltinRule{jump("PREROUTING", "-j KPL-ONE"),
				jump("PREROUTING", "-i a -j KPL-ONE")},
				Chains: []Chain{chain("KPL-ONE", "-j RETURN")}},
			chains: two,
			jumps:  []BuiltinRule{jump("PREROUTING", "-j KPL-ONE"), jump("PREROUTING", "-i a -j KPL-ONE"), in, out}},
		{name: "deleted rules go, also if they are not there or jump to what is not there",
			batch: TableBatch{Delete: []BuiltinRule{jump("PREROUTING", "-j KPL-ONE"),
				jump("PREROUTING", "-i a -j KPL-ONE"),
				jump("PREROUTING", "-i nosuch -j KPL-ONE"), jump("OUTPUT", "-j KPL-NOSUCH"),
				jump("OUTPUT", "-o b -j KPL-ONE")}},
			chains: two, jumps: []BuiltinRule{in, out}},
		{name: "a rule is moved to the head by deleting and inserting it",
			batch:  TableBatch{Delete: []BuiltinRule{in}, Insert: []BuiltinRule{in}},
			chains: two, jumps: []BuiltinRule{in, out}, sameSize: true},
		{name: "the same rule twice is two rules",
			batch:  TableBatch{Insert: []BuiltinRule{in}},
			chains: two, jumps: []BuiltinRule{in, in, out}},
		{name: "of two that are the same one is deleted",
			batch:  TableBatch{Delete: []BuiltinRule{in}},
			chains: two, jumps: []BuiltinRule{in, out}},
		{name: "a chain that something jumps to stays, and with it all the batch is refused",
			batch: TableBatch{Chains: []Chain{chain("KPL-SERVICES", "-j KPL-ONE", "-j RETURN")},
				Remove: []string{"KPL-ONE"}},
			refused: "-X KPL-ONE"},
		{name: "a jump to a chain that is not there is refused",
			batch: TableBatch{Chains: []Chain{chain("KPL-TWO"),
				chain("KPL-THREE", "-j RETURN", "-s HOST -j KPL-NOSUCH", "-j RETURN")}},
			refused: "-j KPL-NOSUCH", origin: "the service of KPL-THREE"},
		{name: "a jump to a built-in chain is refused",
			batch:   TableBatch{Chains: []Chain{chain("KPL-TWO", "-j OUTPUT")}},
			refused: "-j OUTPUT", origin: "the service of KPL-TWO"},
		{name: "a jump to a chain that is removed is refused",
			batch:   TableBatch{Chains: []Chain{chain("KPL-TWO", "-j KPL-THREE")}, Remove: []string{"KPL-THREE"}},
			refused: "-X KPL-THREE"},
		{name: "a chain that is filled and removed at once is refused",
			batch:   TableBatch{Chains: []Chain{chain("KPL-TWO", "-j RETURN")}, Remove: []string{"KPL-TWO"}},
			refused: "-X KPL-TWO"},
		{name: "a chain that is removed twice is refused",
			batch:   TableBatch{Remove: []string{"KPL-TWO", "KPL-TWO"}},
			refused: "-X KPL-TWO"},
		{name: "a loop is refused", byContent: true,
			batch:   TableBatch{Chains: []Chain{chain("KPL-ONE", "-j KPL-TWO"), chain("KPL-TWO", "-j KPL-ONE")}},
			refused: "-j KPL-", byKernel: true, origin: "the service of KPL-TWO"},
		{name: "a match that nobody knows is refused", byContent: true,
			batch:   TableBatch{Chains: []Chain{chain("KPL-TWO", "-m nosuch -j RETURN")}},
			refused: "-m nosuch", origin: "the service of KPL-TWO"},
		{name: "an option that nobody knows is refused", byContent: true,
			batch:   TableBatch{Chains: []Chain{chain("KPL-TWO", "-p tcp -m tcp --nosuch 1 -j RETURN")}},
			refused: "--nosuch", origin: "the service of KPL-TWO"},
		{name: "an address of the other family is refused", byContent: true,
			batch:   TableBatch{Chains: []Chain{chain("KPL-TWO", "-s OTHER -j RETURN")}},
			refused: "-s ", origin: "the service of KPL-TWO"},
		{name: "a rule for a chain that is not there is refused",
			batch:   TableBatch{Insert: []BuiltinRule{jump("KPL-NOSUCH", "-j RETURN")}},
			refused: "-I KPL-NOSUCH"},
		{name: "masquerading where packets come in is refused", byContent: true,
			batch:   TableBatch{Chains: []Chain{chain("KPL-ONE", "-j MASQUERADE")}},
			refused: "MASQUERADE", byKernel: true, origin: "the service of KPL-ONE"},
		{name: "dropping in table nat is refused", byContent: true,
			batch:   TableBatch{Chains: []Chain{chain("KPL-TWO", "-j DROP")}},
			refused: "DROP", origin: "the service of KPL-TWO"},
		{name: "where no packet comes by, masquerading is taken",
			batch: TableBatch{Chains: []Chain{chain("KPL-TWO", "-j MASQUERADE")}},
			chains: map[string][]string{"KPL-SERVICES": {"-j KPL-ONE"}, "KPL-ONE": {"-j RETURN"},
				"KPL-TWO": {"-j MASQUERADE"}}, jumps: []BuiltinRule{in, out}},
		{name: "to send packets there is refused", byContent: true,
			batch:   TableBatch{Insert: []BuiltinRule{jump("OUTPUT", "-j KPL-TWO")}},
			refused: anyLine},
		{name: "a rule to delete that is no rule is refused", byContent: true,
			batch:   TableBatch{Delete: []BuiltinRule{jump("OUTPUT", "-i eth0 -j KPL-ONE")}},
			refused: "-D OUTPUT"},
		{name: "chains are removed with what is in them, also if they jump to each other or are not there",
			batch: TableBatch{Delete: []BuiltinRule{in, out},
				Remove: []string{"KPL-ONE", "KPL-SERVICES", "KPL-TWO", "KPL-NOSUCH"}}},
	}
}

func TestFakeDoesWhatBatchesSay(t *testing.T) {
	for _, f := range model.Families() {
		t.Run(f.String(), func(t *testing.T) { testVerbs(t, NewFake(f)) })
	}
}

// testVerbs does all verbs with an iptables whose table nat is empty.
func testVerbs(t *testing.T, ipt Interface) {
	ctx := t.Context()
	features := ipt.Features()
	var chains map[string][]string
	var jumps []BuiltinRule
	_, opaque := ipt.(*Fake)
	for _, s := range verbs() {
		if s.byContent && opaque {
			continue
		}
		generation, err := ipt.Generation(ctx)
		require.NoError(t, err, s.name)

		s.batch.Table = NAT
		err = ipt.Restore(ctx, &Batch{Tables: []TableBatch{inFamily(s.batch, features.Family)}})

		after, generationErr := ipt.Generation(ctx)
		require.NoError(t, generationErr, s.name)
		if s.refused == "" {
			require.NoError(t, err, s.name)
			// The generation of iptables-legacy does not change with a change that keeps all sizes.
			if !s.sameSize || features.Variant == NFT {
				assert.NotEqual(t, generation, after, "%s: the generation", s.name)
			}
			chains, jumps = s.chains, s.jumps
		} else {
			checkRefusal(t, s, err, features)
			assert.Equal(t, generation, after, "%s: the generation", s.name)
		}

		got, err := ipt.Read(ctx, NAT, "KPL-")
		require.NoError(t, err, s.name)
		if chains == nil {
			chains = map[string][]string{}
		}
		assert.Equal(t, chains, got.Chains, s.name)
		assert.Equal(t, jumps, got.Jumps, s.name)
	}
}

func checkRefusal(t *testing.T, s step, err error, features Features) {
	t.Helper()
	var failed *RestoreError
	require.ErrorAs(t, err, &failed, s.name)
	assert.Equal(t, features.Family, failed.Family, s.name)
	assert.Equal(t, NAT, failed.Table, s.name)
	assert.Positive(t, failed.Line, s.name)
	if s.refused == anyLine {
		return
	}
	if s.byKernel && features.Variant == Legacy {
		assert.Equal(t, "COMMIT", failed.Text, "%s: iptables-legacy cannot tell more", s.name)
		return
	}
	assert.Contains(t, failed.Text, s.refused, "%s: %v", s.name, err)
	assert.Equal(t, s.origin, failed.Origin, "%s: %v", s.name, err)
}

// inFamily puts addresses into rules.
func inFamily(b TableBatch, f model.Family) TableBatch {
	host, other := "192.0.2.1/32", "2001:db8::1/128"
	if f == model.IPv6 {
		host, other = other, host
	}
	replace := strings.NewReplacer("HOST", host, "OTHER", other)
	b.Chains = slices.Clone(b.Chains)
	for i := range b.Chains {
		b.Chains[i].Rules = slices.Clone(b.Chains[i].Rules)
		for j, r := range b.Chains[i].Rules {
			b.Chains[i].Rules[j] = replace.Replace(r)
		}
	}
	return b
}
