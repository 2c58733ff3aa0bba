package dropin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// installOnly makes programs the only ones that are found; those in broken say that they have no permission.
func installOnly(t *testing.T, programs, broken []string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		require.NoError(t, os.Symlink(need.Program(t, name), filepath.Join(dir, name)))
	}
	for _, name := range broken {
		script := fmt.Sprintf(
			"#!/bin/sh\n[ \"$1\" = --version ] && { echo '%s v1.8.9 (legacy)'; exit 0; }\necho 'Cannot initialize: "+
				"Permission denied' >&2\nexit 1\n", name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir)
}

// A container that may not use iptables-legacy can still clean up iptables-nft.
func TestATableThatCannotBeReadDoesNotPreventOtherCleanUp(t *testing.T) {
	variant := []string{"iptables-nft", "iptables-nft-save", "iptables-nft-restore"}
	nftProgram := need.Program(t, "nft")
	installOnly(t, variant, []string{"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore"})
	node := testkit.NewNamespace(t)
	program := need.Program(t, "iptables-nft")
	var other *goiptables.IPTables // sees what somebody else sees
	chains := func() (chains []string) {
		node.Do(func() (err error) { chains, err = other.ListChains("nat"); return err })
		return chains
	}
	node.Do(func() (err error) {
		if other, err = goiptables.New(goiptables.Path(program)); err != nil {
			return err
		}
		return errors.Join(other.NewChain("nat", "KUBE-SERVICES"), other.NewChain("nat", "OTHER"),
			other.Append("nat", "PREROUTING", "-j", "KUBE-SERVICES"))
	})
	require.Contains(t, chains(), "KUBE-SERVICES")
	node.Do(func() error {
		require.NoError(t, exec.Command(nftProgram, "add table ip6 kube-proxy; add chain ip6 kube-proxy c").Run())
		assert.Equal(t, []string{"chain KUBE-SERVICES (IPv4, iptables-nft)", "nft table ip6 kube-proxy"},
			(&machine{}).findUpstream(t.Context()))
		return nil
	})
	node.Do(func() error {
		assert.ErrorContains(t, cleanUpIPTables(t.Context(), &machine{}),
			"is this process root with CAP_NET_ADMIN and CAP_NET_RAW")
		return nil
	})
	for name, cleanUp := range map[string]func() error{
		"of Kubernetes' kube-proxy": func() error { return cleanUpUpstreamIPTables(t.Context(), &machine{}) },
		"of this program":           func() error { return cleanUpIPTables(t.Context(), &machine{}) },
	} {
		node.Do(func() error {
			assert.ErrorIs(t, cleanUp(), fs.ErrPermission, name)
			return nil
		})
	}
	assert.NotContains(t, chains(), "KUBE-SERVICES")
	assert.Contains(t, chains(), "OTHER")
}

// A node that changed from one variant of iptables to the other may have rules of kube-proxy in both.
func TestLeftoversInBothVariantsAreRemoved(t *testing.T) {
	node := testkit.NewNamespace(t)
	programs := map[string]string{}
	for _, name := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		programs[name] = need.Program(t, name)
	}
	node.Do(func() error {
		for name, program := range programs {
			ipt, err := goiptables.New(goiptables.Path(program))
			require.NoError(t, err)
			require.NoError(t, errors.Join(ipt.NewChain("nat", "KUBE-SERVICES"), ipt.NewChain("nat", "KUBE-SVC-A"),
				ipt.NewChain("nat", "OTHER"), ipt.Append("nat", "KUBE-SERVICES", "-j", "KUBE-SVC-A"),
				ipt.Append("nat", "PREROUTING", "-j", "KUBE-SERVICES"), ipt.Append("nat", "PREROUTING", "-j", "OTHER")))
			defer func() {
				chains, err := ipt.ListChains("nat")
				assert.NoError(t, err)
				assert.NotContains(t, chains, "KUBE-SERVICES", name)
				assert.NotContains(t, chains, "KUBE-SVC-A", name)
				rules, err := ipt.List("nat", "PREROUTING")
				assert.NoError(t, err)
				assert.Equal(t, []string{"-P PREROUTING ACCEPT", "-A PREROUTING -j OTHER"}, rules, name)
			}()
		}
		names, err := findUpstreamIPTables(t.Context(), &machine{})
		assert.NoError(t, err)
		assert.Len(t, names, 4, "%v", names)
		return cleanUpUpstreamIPTables(t.Context(), &machine{})
	})
}

// Kubernetes 1.23's chain KUBE-XLB- must not keep all others.
func TestChainsOfOldKubeProxiesGoFromTheKernel(t *testing.T) {
	for _, program := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		t.Run(program, func(t *testing.T) {
			restore, save := need.Program(t, program+"-restore"), need.Program(t, program+"-save")
			t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
			testkit.NewNamespace(t).Do(func() error {
				command := exec.Command(restore, "--noflush")
				command.Stdin = strings.NewReader(oldKubeProxy)
				out, err := command.CombinedOutput()
				require.NoError(t, err, "%s", out)
				m := &machine{}
				found, err := findUpstreamIPTables(t.Context(), m)
				require.NoError(t, err)
				assert.Len(t, found, 1)

				err = cleanUpUpstreamIPTables(t.Context(), m)
				assert.ErrorContains(t, err, "KUBE-FW-AAAAAAAAAAAAAAAA (from OTHER), KUBE-SERVICES (from OTHER)")
				assert.True(t, onlyInUse(err), "%v", err)
				found, err = findUpstreamIPTables(t.Context(), m)
				require.NoError(t, err)
				assert.Empty(t, found)
				out, err = exec.Command(save, "-t", "nat").Output()
				require.NoError(t, err)
				assert.ElementsMatch(t, leftOfOldKubeProxy(), aboutKubeProxy(string(out)))
				return nil
			})
		})
	}
}

func TestFamiliesThatIPTablesIsThereFor(t *testing.T) {
	installOnly(t, []string{"iptables", "iptables-save", "iptables-restore"}, nil)
	testkit.NewNamespace(t).Do(func() error {
		assert.ErrorIs(t, usableIPTables(t.Context(), model.IPv6, &machine{}), exec.ErrNotFound)
		return usableIPTables(t.Context(), model.IPv4, &machine{})
	})

	// It is installed, but cannot run.
	broken := func(name string) {
		const script = "#!/bin/sh\necho 'error while loading shared libraries: libip6tc.so.2' >&2\nexit 127\n"
		for _, program := range []string{name, name + "-save", name + "-restore"} {
			require.NoError(t, os.WriteFile(filepath.Join(os.Getenv("PATH"), program), []byte(script), 0o755))
		}
	}
	broken("ip6tables")
	current := &mode{name: v1alpha2.ProxyModeIPTables, usable: usableIPTables}
	testkit.NewNamespace(t).Do(func() error {
		families, missing := current.families(t.Context(), &machine{})
		assert.Equal(t, []model.Family{model.IPv4}, families)
		assert.ErrorContains(t, missing, "libip6tc.so.2")
		return nil
	})
	installOnly(t, nil, nil)
	broken("iptables")
	broken("ip6tables")
	testkit.NewNamespace(t).Do(func() error {
		families, missing := current.families(t.Context(), &machine{})
		assert.Empty(t, families)
		assert.ErrorContains(t, missing, "iptables --version: the program is installed, but cannot be used "+
			"(exit status 127): error while loading shared libraries: libip6tc.so.2")
		return nil
	})

	// A family whose program fails for the moment is not left out until the next start.
	installOnly(t, nil, []string{"ip6tables", "ip6tables-save", "ip6tables-restore"})
	testkit.NewNamespace(t).Do(func() error { return usableIPTables(t.Context(), model.IPv6, &machine{}) })
}
