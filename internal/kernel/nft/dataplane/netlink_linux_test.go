package dataplane

import (
	"context"
	"encoding/binary"
	"os/exec"
	"slices"
	"strings"
	"syscall"
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

func newNetlink(t testing.TB) *Netlink {
	t.Helper()
	testkit.EnterNamespace(t)
	n, err := NewNetlink()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, n.Close()) })
	return n
}

func nft(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(need.Program(t, "nft"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "nft %v: %s", args, out)
	return string(out)
}

func sortElements(t *Table) *Table {
	for _, s := range t.Sets {
		slices.SortFunc(s.Elements, func(a, b Element) int { return strings.Compare(a.Key, b.Key) })
	}
	return t
}

func TestTheKernelHoldsWhatTheFakeHolds(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n, fake, ctx := newNetlink(t), NewFake(), context.Background()
		require.NoError(t, fake.Apply(ctx, s.create()))
		require.NoError(t, n.Check(ctx, s.create()))
		before, err := n.ReadTable(ctx, s.key, nil)
		require.NoError(t, err)
		require.Nil(t, before, "a check leaves nothing behind")
		require.NoError(t, n.Apply(ctx, s.create()))

		want, err := fake.ReadTable(ctx, s.key, nil)
		require.NoError(t, err)
		got, err := n.ReadTable(ctx, s.key, nil)
		require.NoError(t, err)
		assert.Equal(t, want, sortElements(got))
		assert.Len(t, got.Sets, 7)
		assert.Len(t, got.Chains["split"].Rules, 7)
	})
}

func TestWhatNftListsLoadsAgain(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n, ctx := newNetlink(t), context.Background()
		require.NoError(t, n.Apply(ctx, s.create()))
		listed := nft(t, "", "list", "ruleset")
		t.Log(listed)
		nft(t, "", "flush", "ruleset")
		nft(t, listed, "-f", "-")
		assert.Equal(t, listed, nft(t, "", "list", "ruleset"))
	})
}

// Other programs may restore a table from a listing, and nft declares some sets in other words. They are the same sets.
func TestTheSetsOfATableThatNftLoadedMatch(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n := newNetlink(t)
		require.NoError(t, n.Apply(t.Context(), s.create()))
		listed := nft(t, "", "list", "ruleset")
		nft(t, "", "flush", "ruleset")
		nft(t, listed, "-f", "-")
		read, err := n.ReadTable(t.Context(), s.key, nil)
		require.NoError(t, err)
		for _, set := range []*Set{s.services, s.endpoints, s.sources, s.same, s.sticky, s.shared, s.indexed} {
			assert.True(t, read.Sets[set.Name].Matches(set), set.Name)
		}
	})
}

func TestAFailedTransactionSaysWhatFailedAndLeavesEverything(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n, fake, ctx := newNetlink(t), NewFake(), context.Background()
		for _, d := range []Interface{n, fake} {
			require.NoError(t, d.Apply(ctx, s.create()))
			before, err := d.ReadTable(ctx, s.key, nil)
			require.NoError(t, err)
			for _, tt := range []struct {
				name string
				do   func(tx *Transaction)
				op   string
				err  error
			}{
				{"an element that is there", func(tx *Transaction) {
					tx.AddElements(s.endpoints, s.slot(1, s.pod, 1))
				}, "add elements to endpoints", syscall.EEXIST},
				{"an element that is not there", func(tx *Transaction) {
					tx.DeleteElements(s.endpoints, s.slot(7, s.pod, 1))
				}, "delete elements from endpoints", syscall.ENOENT},
				{"a chain that is referred to", func(tx *Transaction) {
					tx.FlushChain("cluster-2")
					tx.DeleteChain("cluster-2")
				}, "delete chain cluster-2", syscall.EBUSY},
				{"a set that is referred to", func(tx *Transaction) {
					tx.DeleteSet("hairpin")
				}, "delete set hairpin", syscall.EBUSY},
				{"a chain that is there", func(tx *Transaction) {
					tx.AddChain(&Chain{Name: "split"})
				}, "add chain split", syscall.EEXIST},
				{"a set that is there", func(tx *Transaction) {
					tx.AddSet(s.same)
				}, "add set hairpin", syscall.EEXIST},
				{"a rule that goes nowhere", func(tx *Transaction) {
					tx.AddRule("split", &Rule{Statements: []Statement{Goto{"nowhere"}}})
				}, "add rule to chain split", syscall.ENOENT},
				{"a lookup in nothing", func(tx *Transaction) {
					tx.AddRule("split", &Rule{Statements: []Statement{InSet{Set: &Set{Name: "none", Key: s.same.Key}}, Drop{}}})
				}, "add rule to chain split", syscall.ENOENT},
				{"a verdict that goes nowhere", func(tx *Transaction) {
					key := AppendPort(AppendProtocol(AppendAddr(nil, s.pod), 6), 80)
					tx.AddElements(s.services, Element{Key: string(key), Value: "nowhere"})
				}, "add elements to service-ips", syscall.ENOENT},
				{"a chain that leads back to itself", func(tx *Transaction) {
					tx.AddRule("reject-new", &Rule{Statements: []Statement{Goto{"split"}}})
				}, "commit", nil},
				{"a table that is not there", func(tx *Transaction) {
					tx.Table.Name = "none"
					tx.FlushChain("split")
				}, "flush chain split", syscall.ENOENT},
			} {
				tx := NewTransaction(s.key)
				tx.AddElements(s.endpoints, s.slot(2, s.pod, 1)) // has to be undone
				if tt.op == "flush chain split" {
					tx = NewTransaction(s.key)
				}
				tt.do(tx)
				err := d.Apply(ctx, tx)
				var opErr *OpError
				if assert.ErrorAs(t, err, &opErr, "%T: %s", d, tt.name) {
					if tt.err != nil {
						assert.ErrorIs(t, err, tt.err, "%T: %s", d, tt.name)
						assert.Equal(t, tt.op, opErr.Op, "%T: %s", d, tt.name)
						assert.Equal(t, strings.HasPrefix(tt.op, "add rule"), opErr.Rule != "", "%T: %s", d, tt.name)
					}
				}
			}
			after, err := d.ReadTable(ctx, s.key, nil)
			require.NoError(t, err)
			assert.Equal(t, sortElements(before), sortElements(after), "%T", d)
		}
	})
}

func TestBigElementListsAreComplete(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n, ctx := newNetlink(t), context.Background()
		require.NoError(t, n.Apply(ctx, s.create()))
		var slots []Element
		for i := range uint32(5000) {
			slots = append(slots, s.slot(i+2, s.pod, 80))
		}
		tx := NewTransaction(s.key)
		tx.AddElements(s.endpoints, slots...)
		require.NoError(t, n.Apply(ctx, tx))
		got, err := n.ReadTable(ctx, s.key, nil)
		require.NoError(t, err)
		assert.Len(t, got.Sets["endpoints"].Elements, 5002)
		tx = NewTransaction(s.key)
		tx.DeleteElements(s.endpoints, slots...)
		require.NoError(t, n.Apply(ctx, tx))
		got, err = n.ReadTable(ctx, s.key, nil)
		require.NoError(t, err)
		assert.Len(t, got.Sets["endpoints"].Elements, 2)
		assert.False(t, n.Drifted(s.key), "our own changes are no drift")
		nft(t, "", "flush", "chain", familyText(s.key.Family), s.key.Name, "reject-new")
		<-n.Drift() // also after a transaction during which nobody listened
	})
}

func TestChangesOfOthersAreNoticedAtOnce(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n, ctx := newNetlink(t), context.Background()
		require.NoError(t, n.Apply(ctx, s.create()))
		slot := func(i uint32) *Transaction {
			tx := NewTransaction(s.key)
			tx.AddElements(s.endpoints, s.slot(i, s.pod, 80))
			return tx
		}
		nft(t, "", "add", "table", "ip", "another")
		require.NoError(t, n.Apply(ctx, slot(2)), "another table is of no interest")
		require.False(t, n.Drifted(s.key))
		select {
		case <-n.Drift():
			t.Fatal("another table is no drift")
		default:
		}

		nft(t, "", "flush", "chain", familyText(s.key.Family), s.key.Name, "reject-new")
		<-n.Drift()
		require.True(t, n.Drifted(s.key))
		require.ErrorIs(t, n.Apply(ctx, slot(3)), ErrStale)
		table, err := n.ReadTable(ctx, s.key, nil)
		require.NoError(t, err)
		require.Empty(t, table.Chains["reject-new"].Rules)
		require.NoError(t, n.Apply(ctx, slot(3)))

		nft(t, "", "delete", "table", familyText(s.key.Family), s.key.Name)
		require.ErrorIs(t, n.Apply(ctx, slot(4)), ErrStale, "noticed by the generation, too")
	})
}

func TestATransactionForAnotherGenerationIsRefused(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n, ctx := newNetlink(t), context.Background()
		require.NoError(t, n.Apply(ctx, s.create()))
		tx := NewTransaction(s.key)
		tx.FlushChain("sticky")
		n.generation--
		b, err := encodeBatch(tx, true)
		require.NoError(t, err)
		b.setGeneration(n.generation)
		require.ErrorIs(t, n.exchange(tx, b), unix.ERESTART)
		require.NoError(t, n.Apply(ctx, tx), "it finds out that nothing happened to the table")
	})
}

func TestTheBufferOfABatchIsNeitherTooSmallNorFarTooBig(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		const n = 10000
		var slots, chains []Element
		for i := range uint32(n) {
			slots = append(slots, s.slot(i, s.pod, 80))
			chains = append(chains, Element{Key: string(s.vipKey()), Value: "to-2-endpoints", Comment: "ns/service:http"})
		}
		for _, of := range []struct {
			set      *Set
			elements []Element
		}{{s.endpoints, slots}, {s.services, chains}} {
			tx := NewTransaction(s.key)
			tx.AddElements(of.set, of.elements...)
			had := tx.bytes()
			b, err := encodeBatch(tx, true)
			require.NoError(t, err)
			require.LessOrEqual(t, len(b.Buf), had, "it is copied")
			require.Less(t, had, len(b.Buf)*11/10)
		}
	})
}

func TestABatchOfManyRulesIsAsBigAsOneOfManyElements(t *testing.T) {
	s := newSample(model.IPv4)
	rules, elements := NewTransaction(s.key), NewTransaction(s.key)
	for i := range uint32(quietSize) {
		rules.AddRule("cluster-2", &Rule{Statements: []Statement{Return{}}})
		elements.AddElements(s.endpoints, s.slot(i, s.pod, 80))
	}
	assert.True(t, rules.isBig())
	assert.True(t, elements.isBig())
	assert.False(t, s.create().isBig())
}

// While a big batch is being sent, the monitor does not listen. So any table may have been changed by another program
// meanwhile.
func TestWhatOthersDoDuringABigBatchIsSuspectedOfAllTables(t *testing.T) {
	n := newNetlink(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	samples := map[model.Family]sample{}
	bothFamilies(t, func(t *testing.T, s sample) { samples[s.key.Family] = s })
	for _, s := range samples {
		require.NoError(t, n.Apply(ctx, s.create()))
		_, err := n.ReadTable(ctx, s.key, nil)
		require.NoError(t, err)
	}
	v4, v6 := samples[model.IPv4], samples[model.IPv6]
	var slots []Element
	for i := range uint32(quietSize) {
		slots = append(slots, v4.slot(i+2, v4.pod, 80))
	}
	tx := NewTransaction(v4.key)
	tx.AddElements(v4.endpoints, slots...)
	require.NoError(t, n.monitor.conn.Leave(unix.NFNLGRP_NFTABLES)) // as Apply does
	nft(t, "", "flush", "ruleset")
	require.ErrorIs(t, n.Apply(ctx, tx), ErrStale)
	select {
	case <-n.Drift():
	case <-ctx.Done():
		t.Error("no drift")
	}
	assert.True(t, n.Drifted(v6.key), "its table is gone, too")
}

// The kernel enlarges its hash tables a while after a big batch. A list that is read meanwhile may have an element
// twice and another one not at all.
func TestReadingSoonAfterABigBatch(t *testing.T) {
	n, ctx := newNetlink(t), t.Context()
	key := TableKey{Family: model.IPv4, Name: "big"}
	for round := range 24 {
		s := &Set{Name: "addresses", Key: []Field{DestinationAddr}}
		tx := NewTransaction(key)
		tx.AddTable("")
		tx.AddSet(s)
		elements := make([]Element, 5000*(1+round%8))
		for i := range elements {
			elements[i].Key = string(binary.BigEndian.AppendUint32(nil, 10<<24|uint32(i)))
		}
		tx.AddElements(s, elements...)
		require.NoError(t, n.Apply(ctx, tx))
		table, err := n.ReadTable(ctx, key, nil)
		require.NoError(t, err)
		different := map[string]bool{}
		for _, e := range table.Sets["addresses"].Elements {
			different[e.Key] = true
		}
		assert.Len(t, different, len(elements))
		assert.Len(t, table.Sets["addresses"].Elements, len(elements))
		tx = NewTransaction(key)
		tx.DeleteTable()
		require.NoError(t, n.Apply(ctx, tx))
	}
}

// The kernel reports a list as interrupted whichever table was changed. A restart must work also on a node where other
// programs change tables all the time.
func TestAChangeOfAnotherTableDoesNotInterruptTheListOfAChain(t *testing.T) {
	n, ctx := newNetlink(t), t.Context()
	other, err := NewNetlink()
	require.NoError(t, err)
	defer other.Close()
	key := TableKey{Family: model.IPv4, Name: "long"}
	const rules = 1000 // more than the kernel lists in one piece
	tx := NewTransaction(key)
	tx.AddTable("")
	tx.AddChain(&Chain{Name: "long"})
	for range rules {
		tx.AddRule("long", &Rule{Statements: []Statement{IsNew{}, Drop{}}})
	}
	require.NoError(t, n.Apply(ctx, tx))
	listed := 0
	require.NoError(t, n.list(unix.NFT_MSG_GETRULE, key.Family, func(nfnetlink.Message) error {
		if listed++; listed == 1 {
			tx := NewTransaction(TableKey{Family: model.IPv4, Name: "another"})
			tx.AddTable("")
			return other.Apply(ctx, tx)
		}
		return nil
	}, key.Name, "long"))
	assert.Equal(t, rules, listed)
}

// A set whose elements have an expression that this library does not write does not match.
func TestASetWithCountersOfAnotherProgramDoesNotMatch(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		n := newNetlink(t)
		matches := func() bool {
			read, err := n.ReadTable(t.Context(), s.key, nil)
			require.NoError(t, err)
			return read.Sets["service-ips"].Matches(s.services)
		}
		require.NoError(t, n.Apply(t.Context(), s.create()))
		assert.True(t, matches())
		listed := nft(t, "", "list", "ruleset")
		comment := `comment "` + s.services.Comment + `"`
		require.Contains(t, listed, comment)
		nft(t, "", "flush", "ruleset")
		nft(t, strings.Replace(listed, comment, "counter\n"+comment, 1), "-f", "-")
		assert.False(t, matches())
	})
}
