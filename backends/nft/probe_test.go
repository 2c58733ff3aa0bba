package nft_test

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// checking is a kernel that says what it thinks of a table.
type checking struct {
	*dataplane.Fake
	check func(tx *dataplane.Transaction) error
}

func (c checking) Check(_ context.Context, tx *dataplane.Transaction) error { return c.check(tx) }

// A kernel before Linux 5.9 rejects nothing on prerouting. No kernel as old is in testing/vm.
func TestAnOlderKernelIsNamedAtTheStart(t *testing.T) {
	kernel := checking{dataplane.NewFake(), func(tx *dataplane.Transaction) error {
		require.Regexp(t, `(?m)^add rule \S+ \S+ reject-traffic reject$`, tx.Text())
		return &dataplane.OpError{Table: tx.Table, Op: "add rule to chain reject-traffic", Rule: "reject",
			Err: syscall.EOPNOTSUPP}
	}}
	_, err := nft.New(t.Context(), nft.Options{Dataplane: kernel})
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	assert.ErrorContains(t, err, "this kernel cannot do what is needed for IPv4, which Linux 5.10 and later can")
	assert.ErrorContains(t, err, "add rule to chain reject-traffic (reject): operation not supported")
	assert.Zero(t, kernel.Applied())
}

// What the rules of a service of every kind say, in whatever words, the kernel has been asked for at the start.
func TestTheKernelIsAskedForAllThatRulesUse(t *testing.T) {
	asked := map[model.Family]map[string]bool{}
	rule := regexp.MustCompile(`(?m)^add rule \S+ \S+ \S+ (.*)$`)
	kernel := checking{dataplane.NewFake(), func(tx *dataplane.Transaction) error {
		asked[tx.Table.Family] = map[string]bool{}
		for _, m := range rule.FindAllStringSubmatch(tx.Text(), -1) {
			maps.Copy(asked[tx.Table.Family], wordsOf(m[1]))
		}
		return nil
	}}
	backend, err := nft.New(t.Context(), nft.Options{Dataplane: kernel})
	require.NoError(t, err)
	require.NoError(t, backend.Close())
	for family, golden := range map[model.Family]string{model.IPv4: "every-feature-ipv4.nft",
		model.IPv6: "every-feature-ipv6.nft"} {
		text, err := os.ReadFile("testdata/" + golden)
		require.NoError(t, err)
		used := map[string]bool{}
		for _, chain := range regexp.MustCompile(`(?ms)^\tchain [^\n]*\n(.*?)^\t}`).FindAllSubmatch(text, -1) {
			for line := range strings.Lines(string(chain[1])) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, "type ") && !strings.HasPrefix(line, "comment ") {
					maps.Copy(used, wordsOf(line))
				}
			}
		}
		for _, word := range slices.Sorted(maps.Keys(used)) {
			assert.True(t, asked[family][word], "%s: no rule that the kernel is asked for has the word %q", golden, word)
		}
		assert.True(t, used["numgen"] && used["fib"] && used["update"] && used["masquerade"], "%v", used)
	}
}

// wordsOf returns nft's words in a rule: neither names, nor numbers, nor the protocols.
func wordsOf(rule string) map[string]bool {
	rule = regexp.MustCompile(`"[^"]*"|(goto|jump) \S+|@\S+|\b(tcp|udp|sctp)\b`).ReplaceAllString(rule, "$1")
	words := map[string]bool{}
	for _, word := range strings.Fields(rule) {
		if regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(word) {
			words[word] = true
		}
	}
	return words
}
