package dataplane

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func TestAChainThatCannotGoFromTheKernelKeepsNobodyElse(t *testing.T) {
	eachIPTables(t, func(t *testing.T, _ *testkit.Namespace, ipt *IPTables) { testChainsInUse(t, ipt, 1) })
}

func TestAChainOfManyThatCannotGoFromTheKernelKeepsNobodyElse(t *testing.T) {
	needPrograms(t, model.IPv4, NFT)
	ipt := newIPTables(t, testkit.NewNamespace(t), Options{Variant: NFT})
	testChainsInUse(t, ipt, MaxNames)
}

// iptables prints a rule with a verdict map as one that jumps nowhere.
func TestAChainInAVerdictMapKeepsNobodyElse(t *testing.T) {
	needPrograms(t, model.IPv4, NFT)
	nft := need.Program(t, "nft")
	n := testkit.NewNamespace(t)
	ipt := newIPTables(t, n, Options{Variant: NFT})
	require.NoError(t, ipt.Restore(t.Context(), &Batch{Tables: []TableBatch{{Table: NAT, Chains: []Chain{
		{Name: "KUBE-SERVICES", Rules: []string{"-j KUBE-SVC-A"}}, {Name: "KUBE-SVC-A", Rules: []string{"-j RETURN"}}}}}}))
	n.Do(func() error {
		return exec.Command(nft, "add chain ip nat native; "+
			"add rule ip nat native tcp dport vmap { 80 : jump KUBE-SVC-A }").Run()
	})
	err := RemoveChains(t.Context(), ipt, "KUBE-", notTheMark, NAT)
	require.EqualError(t, err, "table nat: chains of others jump to chains that are left, empty: "+
		"KUBE-SVC-A (from a rule made with nft)")
	state, err := ipt.Read(t.Context(), NAT, "KUBE-")
	require.NoError(t, err)
	assert.Equal(t, map[string][]string{"KUBE-SVC-A": nil}, state.Chains)
}
