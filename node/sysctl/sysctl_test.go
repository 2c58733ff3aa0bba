package sysctl

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// newRoot creates a root with these files.
func newRoot(t *testing.T, files map[string]string) Root {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return Root(dir)
}

// conntrackFiles are the files that Apply touches, with the values of an unconfigured kernel.
func conntrackFiles() map[string]string {
	return map[string]string{
		"proc/sys/net/netfilter/nf_conntrack_max":                     "65536\n",
		"sys/module/nf_conntrack/parameters/hashsize":                 "16384\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established": "432000\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait":  "60\n",
		"proc/sys/net/netfilter/nf_conntrack_udp_timeout":             "30\n",
		"proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream":      "120\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal":          "0\n",
	}
}

func contents(t *testing.T, root Root) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(string(root), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(string(root), path)
		all[filepath.ToSlash(name)] = string(b)
		return err
	}))
	return all
}

func TestConntrackSetsOnlyRequestedParameters(t *testing.T) {
	const sys = "proc/sys/net/netfilter/nf_conntrack_"
	const hashsize = "sys/module/nf_conntrack/parameters/hashsize"
	for _, test := range []struct {
		name string
		c    Conntrack
		want map[string]string // that is different
	}{
		{"nothing", Conntrack{}, nil},
		{"a minimum alone", Conntrack{Min: 131072, CPUs: 4}, nil},
		{"negative values", Conntrack{MaxPerCore: -1, TCPEstablishedTimeout: -time.Second, UDPTimeout: -1}, nil},
		{"by cores", Conntrack{MaxPerCore: 32768, Min: 1024, CPUs: 4},
			map[string]string{sys + "max": "131072\n", hashsize: "32768\n"}},
		{"at least the minimum", Conntrack{MaxPerCore: 32768, Min: 200000, CPUs: 4},
			map[string]string{sys + "max": "200000\n", hashsize: "50000\n"}},
		{"at most a million, on a large machine", Conntrack{MaxPerCore: 32768, CPUs: 256},
			map[string]string{sys + "max": "1048576\n", hashsize: "262144\n"}},
		{"a minimum above that", Conntrack{MaxPerCore: 32768, Min: 2000000, CPUs: 256},
			map[string]string{sys + "max": "2000000\n", hashsize: "500000\n"}},
		{"neither the maximum nor the hash table is ever lowered", Conntrack{MaxPerCore: 1024, CPUs: 1}, nil},
		{"a maximum of exactly what is there", Conntrack{MaxPerCore: 65536, CPUs: 1}, nil},
		{"one more than what is there", Conntrack{MaxPerCore: 65537, CPUs: 1}, map[string]string{sys + "max": "65537\n"}},
		{"TCP timeouts", Conntrack{TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour},
			map[string]string{sys + "tcp_timeout_established": "86400\n", sys + "tcp_timeout_close_wait": "3600\n"}},
		{"UDP timeouts", Conntrack{UDPTimeout: 10 * time.Second, UDPStreamTimeout: 1500 * time.Millisecond},
			map[string]string{sys + "udp_timeout": "10\n", sys + "udp_timeout_stream": "2\n"}},
		{"liberal", Conntrack{TCPBeLiberal: true}, map[string]string{sys + "tcp_be_liberal": "1\n"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := newRoot(t, conntrackFiles())
			require.NoError(t, test.c.Apply(t.Context(), root))
			want := conntrackFiles()
			for name, value := range test.want {
				want[name] = value
			}
			require.Equal(t, want, contents(t, root))
		})
	}
	require.Equal(t, 131072, Conntrack{MaxPerCore: 32768, Min: 131072, CPUs: 1}.limit())
}

func TestTheCPUsThatCountAreThoseOfTheMachine(t *testing.T) {
	const online = "sys/devices/system/cpu/online"
	for _, test := range []struct {
		online string
		want   int
	}{
		{"0\n", 1}, {"0-3\n", 4}, {"0,2-5,8\n", 6}, {"16-127\n", 112},
		{"", runtime.NumCPU()}, {"none", runtime.NumCPU()}, {"3-0", runtime.NumCPU()}, {"0-", runtime.NumCPU()},
		{"0,", runtime.NumCPU()},
	} {
		files := conntrackFiles()
		files[online], files["proc/sys/net/netfilter/nf_conntrack_max"] = test.online, "1\n"
		root := newRoot(t, files)
		require.Equal(t, test.want, root.cpus(), test.online)
		require.NoError(t, Conntrack{MaxPerCore: 1000}.Apply(t.Context(), root))
		got, err := root.Get(netfilter + "max")
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(1000*test.want), got, test.online)
	}
	require.Equal(t, runtime.NumCPU(), Root(t.TempDir()).cpus(), "nothing tells")
}

func TestLiberalIsNeverTakenBack(t *testing.T) {
	files := conntrackFiles()
	files["proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"] = "1\n"
	root := newRoot(t, files)
	require.NoError(t, Conntrack{}.Apply(t.Context(), root))
	require.Equal(t, files, contents(t, root))
}

// link makes a parameter a link to a file of the system.
func link(t *testing.T, root Root, name, target string) {
	t.Helper()
	path := root.path(name)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(target, path))
}

func TestParametersThatCannotBeSetAreNamedAndTheRestIsSet(t *testing.T) {
	need.That(t, runtime.GOOS == "linux", "Linux: files that are read-only for root, too")
	files := conntrackFiles()
	delete(files, "proc/sys/net/netfilter/nf_conntrack_udp_timeout")
	root := newRoot(t, files)
	link(t, root, "proc/sys/net/netfilter/nf_conntrack_max", "/proc/sys/kernel/ostype") // read-only
	// takes everything, keeps nothing
	link(t, root, "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait", "/dev/null")
	link(t, root, "sys/module/nf_conntrack/parameters/hashsize", "/proc/sys/kernel/cap_last_cap") // a number, read-only
	err := Conntrack{
		MaxPerCore: 100000, CPUs: 1, TCPEstablishedTimeout: time.Hour, TCPCloseWaitTimeout: time.Minute,
		UDPTimeout: time.Second, UDPStreamTimeout: time.Minute, TCPBeLiberal: true,
	}.Apply(t.Context(), root)
	var names []string
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var one *Error
		require.ErrorAs(t, e, &one)
		names = append(names, one.Name)
		require.ErrorContains(t, e, one.Name)
	}
	require.Equal(t, []string{"net/netfilter/nf_conntrack_max", "sys/module/nf_conntrack/parameters/hashsize",
		"net/netfilter/nf_conntrack_tcp_timeout_close_wait", "net/netfilter/nf_conntrack_udp_timeout"}, names)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.Contains(t, err.Error(), "sysctl net/netfilter/nf_conntrack_max is Linux and cannot be set to 100000: ")
	require.Contains(t, err.Error(), "sysctl net/netfilter/nf_conntrack_tcp_timeout_close_wait has no value and "+
		"cannot be set to 60: the kernel did not take the value")
	for name, want := range map[string]string{"tcp_timeout_established": "3600", "udp_timeout_stream": "60",
		"tcp_be_liberal": "1"} {
		got, err := root.Get(netfilter + name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestTheMaximumAndTheHashTableAreOnlyEverRaised(t *testing.T) {
	const maximum = "proc/sys/net/netfilter/nf_conntrack_max"
	const hashsize = "sys/module/nf_conntrack/parameters/hashsize"
	c := Conntrack{MaxPerCore: 1024, CPUs: 4}
	for _, test := range []struct{ max, slots, wantMax, wantSlots string }{
		{"4095", "1023", "4096", "1024"},
		{"4096", "1024", "4096", "1024"},
		{"1000000", "250000", "1000000", "250000"},
		{"1000000", "16", "1000000", "1024"}, // slots for what is asked, not for a higher maximum that somebody else set
		{"16", "250000", "4096", "250000"},
		{"0", "250000", "0", "250000"}, // no limit
		{"99999999999999", "1024", "99999999999999", "1024"},
		{"no number", "1024", "4096", "1024"},
	} {
		files := conntrackFiles()
		files[maximum], files[hashsize] = test.max+"\n", test.slots+"\n"
		root := newRoot(t, files)
		for range 2 { // as after a restart
			require.NoError(t, c.Apply(t.Context(), root))
			files[maximum], files[hashsize] = test.wantMax+"\n", test.wantSlots+"\n"
			require.Equal(t, files, contents(t, root), "%+v", test)
		}
	}
}

func TestAMaximumThatCannotBeSetIsAnErrorOnlyIfItIsTooLow(t *testing.T) {
	need.That(t, runtime.GOOS == "linux", "Linux: files that are read-only for root, too")
	const readOnly = "/proc/sys/kernel/ngroups_max" // a number, 65536
	for _, test := range []struct {
		want int
		err  string
	}{
		{1024, ""}, {65535, ""}, {65536, ""},
		{65537, "sysctl net/netfilter/nf_conntrack_max is 65536 and cannot be set to 65537: open "},
	} {
		root := newRoot(t, conntrackFiles())
		link(t, root, "proc/sys/net/netfilter/nf_conntrack_max", readOnly)
		err := Conntrack{MaxPerCore: test.want, CPUs: 1, UDPTimeout: time.Second}.Apply(t.Context(), root)
		if test.err == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, test.err)
		}
		got, err := root.Get(netfilter + "udp_timeout")
		require.NoError(t, err)
		require.Equal(t, "1", got)
	}
}

func TestSetWritesOnlyWhatIsDifferent(t *testing.T) {
	root := newRoot(t, map[string]string{"proc/sys/net/ipv4/conf/eth0.1/route_localnet": "0\n"})
	const name = "net/ipv4/conf/eth0.1/route_localnet"
	changed, err := root.SetInt(name, 1)
	require.NoError(t, err)
	require.True(t, changed)
	got, err := root.Get(name)
	require.NoError(t, err)
	require.Equal(t, "1", got)
	// A file without permission to write is fine if there is nothing to write; nor has it a new time stamp.
	old := time.Unix(1, 0)
	require.NoError(t, os.Chtimes(root.path("proc/sys/"+name), old, old))
	changed, err = root.SetInt(name, 1)
	require.NoError(t, err)
	require.False(t, changed)
	info, err := os.Stat(root.path("proc/sys/" + name))
	require.NoError(t, err)
	require.Equal(t, old, info.ModTime())
}

func TestNamesStayBelowTheRoot(t *testing.T) {
	root := newRoot(t, map[string]string{"secret": "1"})
	for _, name := range []string{"../../secret", "/etc/passwd", ""} {
		_, err := root.Get(name)
		require.ErrorContains(t, err, "is not the name of a parameter", name)
		_, err = root.SetInt(name, 2)
		var e *Error
		require.True(t, errors.As(err, &e), name)
	}
	require.Equal(t, map[string]string{"secret": "1"}, contents(t, root))
	_, err := root.Get("net/none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.True(t, strings.HasPrefix(err.Error(), "sysctl net/none: "))
}

func TestApplyWithoutConntrackSaysSo(t *testing.T) {
	err := Conntrack{MaxPerCore: 32768}.Apply(context.Background(), Root(t.TempDir()))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "nf_conntrack_max")
}
