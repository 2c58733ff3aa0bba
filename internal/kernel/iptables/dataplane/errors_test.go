package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// failing is a batch of 16 lines, which TestBatchIsWrittenInTheOrderThatIsPromised shows.
func failing() *Batch {
	return &Batch{Tables: []TableBatch{
		{Table: Filter, Chains: []Chain{{"KPL-F", []string{"-j RETURN"}, "default/filter"}}},
		{Table: Mangle},
		{Table: NAT,
			Chains: []Chain{
				{"KPL-A", []string{"-s 192.0.2.1/32 -j RETURN", "-j KPL-NOSUCH"}, "default/a"},
				{"KPL-B", []string{"-j KPL-A"}, "default/b"},
			},
			Delete: []BuiltinRule{{"OUTPUT", "-j KPL-OLD"}},
			Insert: []BuiltinRule{{"OUTPUT", "-j KPL-A"}, {"OUTPUT", "-j KPL-B"}},
			Remove: []string{"KPL-GONE"}},
	}}
}

func TestBatchIsWrittenInTheOrderThatIsPromised(t *testing.T) {
	assert.Equal(t, `*filter
:KPL-F - [0:0]
-A KPL-F -j RETURN
COMMIT
*nat
:KPL-A - [0:0]
:KPL-B - [0:0]
:KPL-GONE - [0:0]
-A KPL-A -s 192.0.2.1/32 -j RETURN
-A KPL-A -j KPL-NOSUCH
-A KPL-B -j KPL-A
-D OUTPUT -j KPL-OLD
-I OUTPUT -j KPL-B
-I OUTPUT -j KPL-A
-X KPL-GONE
COMMIT
`, failing().String())
	assert.Empty(t, (&Batch{Tables: []TableBatch{{Table: NAT}}}).String())
	assert.True(t, (&Batch{Tables: []TableBatch{{Table: NAT}}}).IsEmpty())
	assert.False(t, failing().IsEmpty())
}

func TestMessagesOfTheProgramsNameALine(t *testing.T) {
	for _, x := range []struct{ name, stderr, line, origin string }{
		{"both, a match that is not known",
			"iptables-restore v1.8.9 (legacy): Couldn't load match `nosuch':No such file or directory\n\nError occurred at line: 9\nTry `iptables-restore -h' ...\n",
			"-A KPL-A -s 192.0.2.1/32 -j RETURN", "default/a"},
		{"nft, what the kernel refuses",
			"iptables-nft-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (Invalid argument): rule in chain KPL-F\n",
			"-A KPL-F -j RETURN", "default/filter"},
		{"nft, several lines, of which the first is taken",
			"iptables-nft-restore v1.8.9 (nf_tables): \nline 8: CHAIN_USER_FLUSH failed (No such file or directory): chain KPL-GONE\nline 15: CHAIN_DEL failed (Device or resource busy): chain KPL-GONE\n",
			":KPL-GONE - [0:0]", ""},
		{"nft, a chain that is missing, noticed at the end",
			"iptables-nft-restore v1.8.9 (nf_tables): Chain 'KPL-NOSUCH' does not exist\nError occurred at line: 16\n",
			"-A KPL-A -j KPL-NOSUCH", "default/a"},
		{"nft, a missing chain of a rule to delete",
			"iptables-nft-restore v1.8.9 (nf_tables): Chain 'KPL-OLD' does not exist\nError occurred at line: 16\n",
			"-D OUTPUT -j KPL-OLD", ""},
		{"legacy, a chain that is missing",
			"iptables-restore v1.8.9 (legacy): Couldn't load target `KPL-NOSUCH':No such file or directory\n\nError occurred at line: 10\n",
			"-A KPL-A -j KPL-NOSUCH", "default/a"},
		{"legacy, at the end", "iptables-restore: line 16 failed\n", "COMMIT", ""},
		{"legacy of 1.8.10 and later, with a reason", "iptables-restore: line 16 failed: Invalid argument.\n", "COMMIT", ""},
		{"nft, a rule to delete",
			"iptables-nft-restore: line 12 failed: Bad rule (does a matching rule exist in that chain?).\n",
			"-D OUTPUT -j KPL-OLD", ""},
		{"a line that the batch does not have", "iptables-restore: line 99 failed\n", "", ""},
		{"a number too big for one", "iptables-restore: line 99999999999999999999 failed\n", "", ""},
		{"none", "Segmentation fault\n", "", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			l := failing().lineOf(x.stderr)
			if x.line == "" {
				assert.Zero(t, l)
				return
			}
			assert.Equal(t, x.line, l.text())
			assert.Equal(t, x.origin, l.origin)
		})
	}
}

func TestMissingChainIsLookedForInItsTable(t *testing.T) {
	b := &Batch{Tables: []TableBatch{
		{Table: Filter, Chains: []Chain{{"KPL-A", []string{"-j KPL-B"}, "default/filter"}, {Name: "KPL-B"}}},
		{Table: NAT, Chains: []Chain{{"KPL-A", []string{"-j RETURN", "-j KPL-B"}, "default/nat"}}},
	}}
	l := b.lineOf("iptables-nft-restore v1.8.9 (nf_tables): Chain 'KPL-B' does not exist\nError occurred at line: 10\n")
	assert.Equal(t, 9, l.number)
	assert.Equal(t, "default/nat", l.origin)
}

func TestMessagesOfTheProgramsAreUnderstood(t *testing.T) {
	for stderr, want := range map[string]error{
		"iptables-nft-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)\n":       fs.ErrPermission,
		"Fatal: can't open lock file /run/xtables.lock: Permission denied\n":                                                            fs.ErrPermission,
		"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Table does not exist (do you need to insmod?)\nPerhaps ...\n": ErrNoTable,
		"iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'\n\nError occurred at line: 1\n":           ErrNoTable,
		"Another app is currently holding the xtables lock. Stopped waiting after 1s.\n":                                                ErrLocked,
		"Another app is currently holding the xtables lock; still 1s 0us time ahead to have a chance to grab the lock...\nSegfault":     ErrLocked,
		"iptables v1.8.9 (nf_tables): chain `X' in table `nat' is incompatible, use 'nft' tool.\n":                                      ErrIncompatible,
		"iptables-restore: line 16 failed\n": nil,
	} {
		err := explain(os.ErrProcessDone, stderr)
		assert.ErrorIs(t, err, os.ErrProcessDone)
		for _, class := range []error{fs.ErrPermission, ErrNoTable, ErrLocked, ErrIncompatible} {
			if errors.Is(class, want) {
				assert.ErrorIs(t, err, class, stderr)
			} else {
				assert.NotErrorIs(t, err, class, stderr)
			}
		}
	}
}

func TestRestoreErrorNamesTheLineAndWhoseItIs(t *testing.T) {
	err := &RestoreError{Family: model.IPv6, Table: NAT, Line: 9, Text: "-A KPL-A -j X", Origin: "default/a",
		Err: fmt.Errorf("iptables-restore: %w", explain(os.ErrProcessDone, "no X\nTry `-h'\n\nat all\n"))}
	assert.EqualError(t, err,
		`IPv6: iptables-restore: os: process already finished: no X; at all: line 9, "-A KPL-A -j X", of default/a`)
	assert.ErrorIs(t, err, os.ErrProcessDone)
}

func TestBatchesThatWouldBeReadAsSomethingElseAreRefused(t *testing.T) {
	for name, b := range map[string]TableBatch{
		"a rule of two lines":           {Chains: []Chain{{Name: "KPL-A", Rules: []string{"-j RETURN\n-F"}}}},
		"a rule with the end of a text": {Insert: []BuiltinRule{{"INPUT", "-j \x00"}}},
		"a chain with a space":          {Chains: []Chain{{Name: "KPL A"}}},
		"a chain without a name":        {Chains: []Chain{{}}},
		"a chain like an option":        {Remove: []string{"-F"}},
		"a chain of two lines":          {Remove: []string{"A\nB"}},
		"a chain of 29 bytes":           {Chains: []Chain{{Name: "KPL-5678901234567890123456789"}}},
		"a built-in chain of two lines": {Delete: []BuiltinRule{{"INPUT\n-F", "-j X"}}},
	} {
		b.Table = NAT
		assert.Error(t, (&Batch{Tables: []TableBatch{b}}).check(), name)
	}
	assert.NoError(t, (&Batch{Tables: []TableBatch{{Table: NAT,
		Chains: []Chain{{Name: "KPL-567890123456789012345678"}}}}}).check())
	assert.Error(t, (&Batch{Tables: []TableBatch{{Table: "nat\n*filter", Remove: []string{"A"}}}}).check())
}
