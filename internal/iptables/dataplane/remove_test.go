package dataplane

import (
	"errors"
	"fmt"
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

func removeUpstream(t *testing.T, f *Fake) error {
	return RemoveChains(t.Context(), f, "KUBE-", func(c string) bool { return c != "KUBE-MARK-MASQ" }, NAT, Filter)
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
