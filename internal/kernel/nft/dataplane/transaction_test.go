package dataplane

import (
	"context"
	"hash/fnv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// pieces divides a transaction as far as that is possible.
func pieces(tx *Transaction) []*Transaction {
	first, second, ok := tx.Split()
	if !ok {
		return []*Transaction{tx}
	}
	return append(pieces(first), pieces(second)...)
}

func TestPiecesOfATransactionDoTheSameAndNeverTakeAwayWhatIsReplaced(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		whole, parts, ctx := NewFake(), NewFake(), context.Background()
		replace := NewTransaction(s.key)
		var slots, others []Element
		for i := range uint32(2000) {
			slots = append(slots, s.slot(i+2, s.pod, 80))
			others = append(others, s.slot(i+2, s.pod, 81))
		}
		replace.ReplaceElements(s.endpoints, others...)
		replace.FlushChain("sticky")
		add := NewTransaction(s.key)
		add.AddElements(s.endpoints, slots...)
		for _, tx := range []*Transaction{s.create(), add, replace} {
			require.NoError(t, whole.Apply(ctx, tx))
			small := pieces(tx)
			assert.Greater(t, len(small), 1)
			for _, piece := range small {
				require.NoError(t, parts.Apply(ctx, piece))
				if text := piece.Text(); strings.Contains(text, "delete element") {
					assert.Equal(t, strings.Count(text, "delete element"), strings.Count(text, "add element"))
				}
			}
			require.Equal(t, whole.Dump(s.key), parts.Dump(s.key))
		}
	})
}

func TestTextsAreMadeFitForNft(t *testing.T) {
	longest := strings.Repeat("0123456789", 12)
	for text, want := range map[string]string{
		"default/web:http/TCP":        "default/web:http/TCP",
		"quote\" and \\ and \n and ä": "quote_ and _ and _ and _",
		longest:                       longest,
		longest + "a":                 longest[:117] + "...",
		"":                            "",
	} {
		assert.Equal(t, want, Comment(text))
	}
}

func TestRulesThatSayTheSameHaveTheSameID(t *testing.T) {
	s := &Set{Name: "s", Key: []Field{SourceAddr}}
	a := Rule{Statements: []Statement{InSet{Set: s}, Drop{}}}
	b := Rule{Statements: []Statement{InSet{Set: s}, Return{}}}
	ipv4, ipv6 := RuleIDs([]Rule{a, b, a}, model.IPv4), RuleIDs([]Rule{a}, model.IPv6)
	assert.Equal(t, ipv4[0], ipv4[2])
	assert.NotEqual(t, ipv4[0], ipv4[1])
	assert.NotEqual(t, ipv4[0], ipv6[0])
	h := fnv.New64a()
	h.Write([]byte("ip saddr @s drop"))
	assert.Equal(t, RuleID(h.Sum64()), ipv4[0], "earlier versions have left it in tables that are still there")
}
