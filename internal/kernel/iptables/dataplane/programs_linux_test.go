package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// installed makes a directory the only one in which programs are found, and puts scripts into it.
func installed(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	t.Setenv("PATH", dir)
}

// three are the programs of one name, that say of themselves what version is and whose save prints saved.
func three(name, version, saved string) map[string]string {
	return map[string]string{
		name:              fmt.Sprintf("[ \"$1\" = --version ] && { echo '%s'; exit 0; }\nexit 0", version),
		name + "-save":    fmt.Sprintf("echo '%s'", saved),
		name + "-restore": "exit 0",
	}
}

func merged(all ...map[string]string) map[string]string {
	m := map[string]string{}
	for _, x := range all {
		for k, v := range x {
			m[k] = v
		}
	}
	return m
}

func TestProgramsAreFoundWithWhatTheyCanDo(t *testing.T) {
	for _, x := range []struct {
		name, version string
		family        model.Family
		program       string
		want          Variant
		text          string
	}{
		{"before there were variants", "ip6tables v1.6.2", model.IPv6, "ip6tables", Legacy, "1.6.2"},
		{"nft", "iptables v1.8.9 (nf_tables)", model.IPv4, "iptables", NFT, "1.8.9"},
		{"legacy", "iptables v1.8.10 (legacy)", model.IPv4, "iptables", Legacy, "1.8.10"},
		{"IPv6", "ip6tables v2.0.0 (nf_tables)", model.IPv6, "ip6tables", NFT, "2.0.0"},
	} {
		t.Run(x.name, func(t *testing.T) {
			installed(t, three(x.program, x.version, ""))
			for _, v := range []Variant{"", x.want} {
				p, err := findPrograms(t.Context(), x.family, v)
				require.NoError(t, err)
				assert.Equal(t, x.want, p.variant)
				assert.Equal(t, x.text, p.version)
			}
			other := NFT
			if x.want == NFT {
				other = Legacy
			}
			_, err := findPrograms(t.Context(), x.family, other)
			assert.ErrorIs(t, err, exec.ErrNotFound)
		})
	}
}

func TestProgramsThatAreMissingOrStrangeAreNamed(t *testing.T) {
	nft := three("iptables-nft", "iptables v1.8.9 (nf_tables)", "")
	for name, x := range map[string]struct {
		scripts map[string]string
		names   string
	}{
		"nothing is installed": {nil, "iptables-nft"},
		"no restore": {map[string]string{"iptables-nft": nft["iptables-nft"], "iptables-nft-save": "exit 0"},
			"iptables-nft-restore"},
		"not a version": {three("iptables-nft", "BusyBox", ""), "BusyBox"},
		"does not run":  {merged(nft, map[string]string{"iptables-nft": "echo broken >&2; exit 127"}), "broken"},
		"too old": {three("iptables-nft", "iptables v1.6.1", ""),
			"iptables 1.6.1 is too old: 1.6.2 or later is needed"},
		"another variant": {three("iptables-nft", "iptables v1.8.9 (legacy)", ""), "legacy"},
	} {
		t.Run(name, func(t *testing.T) {
			installed(t, x.scripts)
			_, err := New(t.Context(), Options{Variant: NFT})
			assert.ErrorContains(t, err, x.names)
			assert.True(t, IsAbsent(err), "trying again does not help: %v", err)
		})
	}
	installed(t, nil)
	_, err := New(t.Context(), Options{})
	assert.ErrorIs(t, err, exec.ErrNotFound)
}

func TestSurveyFindsTheVariantThatTheNodeUses(t *testing.T) {
	rules := func(n int) string {
		s := "*nat\n:PREROUTING ACCEPT [0:0]\n"
		for range n {
			s += "-A PREROUTING -j ACCEPT\n"
		}
		return s + "COMMIT"
	}
	hint := "*filter\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT"
	for _, x := range []struct {
		name        string
		nft, legacy string
		want        Variant
	}{
		{"nobody uses anything", rules(0), "", ""},
		{"more rules in nft", rules(2), rules(1), NFT},
		{"more rules in legacy", rules(1), rules(2), Legacy},
		{"the kubelet's hint weighs more than rules", rules(5), hint, Legacy},
		{"the newer hint", "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT", rules(5), NFT},
		{"hints in both, then rules count", hint + "\n" + rules(1), hint, NFT},
		{"a chain of that name elsewhere is no hint", rules(0) + "\n*nat\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT",
			rules(1), Legacy},
	} {
		t.Run(x.name, func(t *testing.T) {
			installed(t, merged(three("iptables-nft", "iptables v1.8.9 (nf_tables)", x.nft),
				three("iptables-legacy", "iptables v1.8.9 (legacy)", x.legacy)))
			got, err := variantInUse(t.Context(), model.IPv4)
			require.NoError(t, err)
			assert.Equal(t, x.want, got)
		})
	}
}

func TestOneVariantIsInstalled(t *testing.T) {
	installed(t, three("iptables", "iptables v1.8.9 (legacy)", "*nat\n-A X -j Y\nCOMMIT"))
	got, err := variantInUse(t.Context(), model.IPv4)
	require.NoError(t, err)
	assert.Equal(t, Legacy, got)
}

// A program may be installed without its loader or a library: it cannot run, and trying again does not help.
func TestProgramsThatCannotRun(t *testing.T) {
	const noLibrary = "echo 'error while loading shared libraries: libip6tc.so.2: cannot open shared object file' >&2; " +
		"exit 127"
	broken := func(name string) map[string]string {
		return map[string]string{name: noLibrary, name + "-save": noLibrary, name + "-restore": noLibrary}
	}
	legacy := three("ip6tables-legacy", "ip6tables v1.8.9 (legacy)", "*nat\n-A X -j Y\nCOMMIT")
	inUse := func(scripts map[string]string) (Variant, error) {
		installed(t, scripts)
		return variantInUse(t.Context(), model.IPv6)
	}
	for name, scripts := range map[string]map[string]string{
		"both variants":           merged(broken("ip6tables-nft"), broken("ip6tables-legacy")),
		"the one that is there":   broken("ip6tables-nft"),
		"the other one":           broken("ip6tables-legacy"),
		"the one without variant": broken("ip6tables"),
	} {
		_, err := inUse(scripts)
		assert.ErrorIs(t, err, ErrUnusable, name)
		assert.ErrorContains(t, err, "libip6tc.so.2", name)
		assert.True(t, IsAbsent(err), name)
		found, err := OpenInUse(t.Context(), []model.Family{model.IPv6}, "")
		assert.Empty(t, found)
		assert.ErrorIs(t, err, ErrUnusable, "%s: nothing is known of its rules", name)
	}
	got, err := inUse(merged(broken("ip6tables-nft"), legacy))
	assert.NoError(t, err)
	assert.Equal(t, Legacy, got, "the variant that can run")

	installed(t, legacy)
	loader := filepath.Join(os.Getenv("PATH"), "ip6tables-legacy")
	require.NoError(t, os.WriteFile(loader, []byte("#!/no/such/loader\n"), 0o755))
	_, err = New(t.Context(), Options{Family: model.IPv6, Variant: Legacy})
	assert.ErrorIs(t, err, ErrUnusable)
	require.NoError(t, os.WriteFile(loader, []byte("#!/bin/sh\nkill -KILL $$\n"), 0o755))
	_, err = New(t.Context(), Options{Family: model.IPv6, Variant: Legacy})
	assert.Error(t, err)
	assert.False(t, IsAbsent(err), "it may have been killed for want of memory: %v", err)
}

// A program that is of no use leaves its family out, whatever is wrong with it. Another process that ends it, or a lack
// of memory, says nothing about the program.
func TestOnlyTemporaryErrorsKeepTheFamily(t *testing.T) {
	for name, x := range map[string]struct {
		script string
		absent bool
	}{
		"it says nothing, like /bin/true": {"exit 0", true},
		"it is too old":                   {"echo ip6tables v1.4.21", true},
		"it fails":                        {"exit 1", true},
		"an illegal instruction":          {"kill -ILL $$", true},
		"a segmentation fault":            {"kill -SEGV $$", true},
		"a forbidden system call":         {"kill -SYS $$", true},
		"it aborts":                       {"kill -ABRT $$", true},
		"it is killed":                    {"kill -KILL $$", false},
		"it is ended":                     {"kill -TERM $$", false},
	} {
		t.Run(name, func(t *testing.T) {
			scripts := map[string]string{}
			for _, program := range []string{"ip6tables", "ip6tables-nft", "ip6tables-legacy"} {
				scripts = merged(scripts, map[string]string{program: x.script, program + "-save": "", program + "-restore": ""})
			}
			installed(t, scripts)
			_, err := New(t.Context(), Options{Family: model.IPv6})
			require.Error(t, err)
			assert.Equal(t, x.absent, IsAbsent(err), err)
		})
	}
	for err, temporary := range map[error]bool{
		unix.ENOMEM: true, unix.EAGAIN: true, unix.ENFILE: true, unix.ETXTBSY: true,
		unix.ENOEXEC: false, unix.ELIBBAD: false, unix.ENOENT: false, unix.EACCES: false, unix.EISDIR: false,
	} {
		assert.Equal(t, temporary, isTemporary(&fs.PathError{Op: "fork/exec", Path: "/sbin/ip6tables", Err: err}), err)
	}
}

// A program that ctx ends is not to blame, and the error is that of ctx.
func TestAContextThatEndsIsNoErrorOfAProgram(t *testing.T) {
	installed(t, three("ip6tables-legacy", "ip6tables v1.8.9 (legacy)", ""))
	runs := filepath.Join(os.Getenv("PATH"), "runs")
	require.NoError(t, unix.Mkfifo(runs, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv("PATH"), "ip6tables-legacy"),
		[]byte("#!/bin/sh\necho >"+runs+"\nkill -STOP $$\n"), 0o755))
	reason := errors.New("time is up")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		_, _ = os.ReadFile(runs) // until the program has written
		cancel(reason)
	}()
	for range 2 { // once while it runs, once before
		_, err := New(ctx, Options{Family: model.IPv6, Variant: Legacy})
		require.ErrorIs(t, err, reason)
		assert.False(t, IsAbsent(err), err)
	}
}

func TestErrorsOfProgramsAreTold(t *testing.T) {
	legacy := three("iptables-legacy", "iptables v1.8.9 (legacy)", "")
	fail := func(message string) map[string]string {
		return merged(legacy, map[string]string{"iptables-legacy-restore": "echo \"" + message + "\" >&2; exit 3"})
	}
	installed(t, fail("iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'"))
	_, err := New(t.Context(), Options{Variant: Legacy})
	assert.ErrorIs(t, err, ErrNoTable)
	assert.ErrorContains(t, err, "nat")

	installed(t, fail("Fatal: can't open lock file /run/xtables.lock: Permission denied"))
	_, err = New(t.Context(), Options{Variant: Legacy})
	assert.ErrorIs(t, err, fs.ErrPermission)
}

func TestNewUsesWhatTheNodeUses(t *testing.T) {
	for _, f := range model.Families() {
		for _, v := range []Variant{NFT, Legacy} {
			t.Run(programName(f, v), func(t *testing.T) {
				for _, p := range []Variant{NFT, Legacy} {
					needPrograms(t, f, p)
				}
				n := testkit.NewNamespace(t)
				b := oneRule(Mangle, "-j RETURN")
				b.Tables[0].Chains[0].Name = "KUBE-IPTABLES-HINT"
				require.NoError(t, newIPTables(t, n, Options{Family: f, Variant: v}).Restore(t.Context(), b))
				other := NFT
				if v == NFT {
					other = Legacy
				}
				more := oneRule(NAT, "-j RETURN")
				more.Tables[0].Chains[0].Rules = []string{"-j RETURN", "-j RETURN"}
				require.NoError(t, newIPTables(t, n, Options{Family: f, Variant: other}).Restore(t.Context(), more))
				assert.Equal(t, v, newIPTables(t, n, Options{Family: f}).Features().Variant)
			})
		}
	}
}

func TestSurveyLoadsNoTable(t *testing.T) {
	n := testkit.NewNamespace(t)
	needPrograms(t, model.IPv4, Legacy)
	n.Do(func() error {
		if _, err := variantInUse(t.Context(), model.IPv4); err != nil {
			return err
		}
		tables, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
		assert.Empty(t, string(tables))
		return err
	})
}

// A program that has exited with success has done its work, also if its standard error is still open after a while: a
// process that it has left has it, or the machine is so busy that nobody has got to reading it.
func TestAProgramWhoseErrorsAreStillOpenHasSucceeded(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	end, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { assert.NoError(t, end.Close()) }() // ends the process that is left
	script := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nread line <'"+fifo+"' &\nexit \"$1\"\n"), 0o755))

	_, err = run(t.Context(), nil, command{path: script, args: []string{"0"}})
	require.NoError(t, err)
	_, err = run(t.Context(), nil, command{path: script, args: []string{"3"}})
	require.ErrorContains(t, err, "exit status 3")
}
