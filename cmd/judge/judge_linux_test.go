package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// judged runs the program, and returns the report.
func judged(t *testing.T, args ...string) (r *report.Report, passed bool, output string) {
	t.Helper()
	need.Root(t)
	need.Program(t, "nft")
	folder := t.TempDir()
	var out bytes.Buffer
	passed, err := run(t.Context(), append(args, "--report", folder), &out, &out)
	require.NoError(t, err, "%s", out.String())
	for _, name := range []string{"junit.xml", "report.html", "proxy-1.log"} {
		assert.FileExists(t, filepath.Join(folder, name))
	}
	text, err := os.ReadFile(filepath.Join(folder, "report.yaml"))
	require.NoError(t, err)
	r, err = report.Read(text)
	require.NoError(t, err)
	return r, passed, out.String()
}

// someCases are a part of the cases: one of each kind, in three setups.
const someCases = "^(a cluster IP leads|external addresses lead|a service without endpoints|endpoints come and go|" +
	"external traffic policy Local keeps|a pod that reaches itself|source ranges guard|" +
	"a client stays with its endpoint$|UDP flows move when their endpoint goes|" +
	"no new connection is lost while the backend restarts|" +
	"local pods are known by the bridge|node ports are served on all addresses|clean-up leaves nothing)"

// The drop-in replacement, as a program that is judged like any other.
func TestTheDropIn(t *testing.T) {
	need.Root(t)
	program := buildDropIn(t, nil)
	for name, test := range map[string]func(*testing.T, string){
		"passes":                             passesTheSuite,
		"leaves rules":                       leavesRules,
		"refuses configurations":             refusesConfigurations,
		"without external IPs":               servesNoExternalIPs,
		"with external IPs, against --lacks": servesExternalIPs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each has nodes of its own, and waits most of the time
			test(t, program)
		})
	}
}

func passesTheSuite(t *testing.T, program string) {
	r, passed, out := judged(t, "--run", someCases, "-v", "--start-timeout", "5m", "--cleanup", program+" --cleanup",
		"--proxy", program+" --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode nftables "+
			"--conntrack-max-per-core 0 {flags}")
	assert.True(t, passed, "%s", out)
	assert.Empty(t, r.Problem)
	assert.Equal(t, 11, r.Counts(report.Core).Passed+r.Counts(report.Core).Slow, "%s", out)
	assert.Equal(t, 2, r.Counts(report.Extended).Passed+r.Counts(report.Extended).Slow, "%s", out)
}

// servesNoExternalIPs: with the feature gates of Kubernetes 1.40 nothing serves external IPs, and everything else is as
// before.
func servesNoExternalIPs(t *testing.T, program string) {
	r, passed, out := judgedWithGates(t, program, "^(a cluster IP leads|external addresses lead|"+
		"a service without endpoints|source ranges guard|of services that list one address|"+
		"a node port and an external IP)", "AllowServiceExternalIPs=false,KubeProxyIPVS=false")
	assert.True(t, passed, "%s", out)
	assert.Empty(t, r.Problem)
}

// servesExternalIPs: without these gates the same program fails.
func servesExternalIPs(t *testing.T, program string) {
	r, passed, out := judgedWithGates(t, program, "^external addresses lead", "AllowServiceExternalIPs=true",
		"--even-if-busy")
	assert.False(t, passed, "%s", out)
	assert.Empty(t, r.Problem)
}

// judgedWithGates judges a program of which nothing is expected at external IPs.
func judgedWithGates(t *testing.T, program, cases, gates string,
	more ...string) (r *report.Report, passed bool, output string) {
	return judged(t, append(more, "--run", cases, "--lacks", "ExternalIPs", "--start-timeout", "5m",
		"--proxy", program+" --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode nftables "+
			"--conntrack-max-per-core 0 {flags} --feature-gates="+gates)...)
}

// The image of Dockerfile.nftables has one file. From an empty root, with what a container runtime mounts and nothing
// else, it serves packets, and cleans up. README says how large it is.
func TestTheImageForNftables(t *testing.T) {
	need.Deep(t) // it compiles everything once more
	need.Root(t)
	need.Program(t, "unshare")
	t.Parallel()
	dockerfile, err := os.ReadFile("../kube-proxy/Dockerfile.nftables")
	require.NoError(t, err)
	flags := regexp.MustCompile(
		`go build (-modfile=\S+) (-trimpath) (-ldflags)="(.*)" -o /kube-proxy \./cmd/kube-proxy\n`).
		FindStringSubmatch(string(dockerfile))
	require.NotNil(t, flags)
	// The image has no libraries.
	program := buildDropIn(t, []string{"CGO_ENABLED=0"}, flags[1], flags[2], flags[3]+"="+flags[4])
	file, err := os.Stat(program)
	require.NoError(t, err)
	for _, page := range []string{"../../README.md", "../kube-proxy/README.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		size := regexp.MustCompile(`is (\d+) MB on amd64`).FindStringSubmatch(string(text))
		require.NotNil(t, size, page)
		said, err := strconv.ParseFloat(size[1], 64)
		require.NoError(t, err)
		if runtime.GOARCH == "amd64" {
			assert.InEpsilon(t, said, float64(file.Size())/1e6, 0.05, "%s, in MB", page)
		}
	}

	// The mounts are of a namespace of their own, which ends with the program.
	in := "mkdir -p {dir}/root/proc {dir}/root/sys && ln -f " + program + " {dir}/root/kube-proxy && " +
		"cp {kubeconfig} {dir}/root/kubeconfig && " +
		"exec unshare --mount --propagation private sh -c 'mount --bind /proc {dir}/root/proc && " +
		`mount --bind /sys {dir}/root/sys && exec chroot {dir}/root /kube-proxy "$@"' sh `
	r, passed, out := judged(t, "--run", "^(a cluster IP leads|external addresses lead|a service without endpoints|"+
		"clean-up leaves nothing|no new connection is lost while the backend restarts)", "--start-timeout", "5m",
		"--cleanup", in+"--cleanup", "--proxy", in+"--kubeconfig /kubeconfig --hostname-override {node} "+
			"--proxy-mode nftables --conntrack-max-per-core 0 {flags}")
	assert.True(t, passed, "%s", out)
	assert.Empty(t, r.Problem)
	assert.Positive(t, r.Counts(report.Core).Passed+r.Counts(report.Core).Slow, "%s", out)
}

// buildDropIn builds the drop-in, with more variables and flags for the compiler. Without any, it is linked from what
// has been compiled for the tests.
func buildDropIn(t *testing.T, env []string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kube-proxy")
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "-o", path, "./cmd/kube-proxy")...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// Programs that are no proxies get a verdict that says so.
func TestBadPrograms(t *testing.T) {
	need.Root(t)
	need.Program(t, "nft")
	everything := `nft add table inet x; nft add chain inet x p '{ type nat hook prerouting priority -100; }'; ` +
		`nft add rule inet x p meta l4proto tcp dnat ip to 10.180.1.12:8080; ` +
		`nft add rule inet x p meta l4proto tcp dnat ip6 to '[fd00:180:1::12]:8080'; exec sleep 1000`
	for _, tc := range []struct{ name, command, want, log string }{
		{"does nothing", "exec sleep 1000", "the program never became ready", ""},
		{"is not there", ":; exec no-such-program", "the program has ended by itself: exit status 127", "no-such-program"},
		{"exits", "echo no such flag >&2; exit 3", "the program has ended by itself: exit status 3", "no such flag"},
		{"ends in order", "true", "the program has ended by itself: exit status 0", ""},
		{"answers everything", everything, "the program answers everything", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			timeout := "5m" // the machine may be busy
			if strings.Contains(tc.want, "never became ready") {
				timeout = "5s"
			}
			r, passed, out := judged(t, "--even-if-busy", "--start-timeout", timeout, "--cleanup", "true", "--break", "true",
				"--proxy", tc.command+" # {flags}")
			assert.False(t, passed)
			assert.Contains(t, r.Problem, tc.want)
			assert.Contains(t, r.Log, tc.log)
			assert.Equal(t, "failure", r.Conclusion(report.Core))
			assert.NotContains(t, out, "goroutine")
			assert.Less(t, strings.Count(out, "\n"), 40, "not a line for each case:\n%s", out)
			for _, result := range r.Results {
				if result.Verdict != report.Unsupported || result.Why != "the program is said to lack IPv6" { // nor has the machine
					assert.Equal(t, report.NotRun, result.Verdict)
				}
			}
		})
	}
}

// leavesRules: a right proxy whose clean-up does nothing fails that case alone, and the report says what is left.
func leavesRules(t *testing.T, program string) {
	r, passed, out := judged(t, "--even-if-busy", "--run", "^(clean-up leaves nothing|a cluster IP leads)",
		"--cleanup", "true", "--lanes", "1",
		"--proxy", program+" --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode nftables "+
			"--conntrack-max-per-core 0 {flags}")
	assert.Empty(t, r.Problem)
	assert.False(t, passed, "%s", out)
	for _, result := range r.Results {
		switch result.Profile {
		case report.Core:
			assert.Contains(t, []report.Verdict{report.Passed, report.NotRun}, result.Verdict, "%s", out)
		case report.Extended:
			if result.Feature == "CleanUp" {
				assert.Equal(t, report.Failed, result.Verdict)
				require.NotEmpty(t, result.Failures)
				assert.Contains(t, result.Failures[0].Seen, "left: nft ")
			}
		}
	}
}

// refusesConfigurations: a program that does not start as some cases want it lacks these features, as kube-proxy before
// 1.37 does not combine "primary" with ranges. The others are judged all the same.
func refusesConfigurations(t *testing.T, program string) {
	refuses := `case '{flags}' in *primary,*) echo not both >&2; exit 3; esac; exec ` + program
	r, passed, out := judged(t, "--even-if-busy",
		"--run", "^(the node's primary address and|a proxy .*node ports on|a cluster IP leads)", "--lanes", "1",
		"--start-timeout", "5m", "--proxy", refuses+
			" --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode nftables --conntrack-max-per-core 0 {flags}")
	assert.True(t, passed, "%s", out)
	assert.Empty(t, r.Problem)
	assert.Equal(t, 1, r.Counts(report.Core).Passed+r.Counts(report.Core).Slow, "%s", out)
	_, _, lacks := r.Features()
	assert.Equal(t, []string{"PrimaryAndLocalhost", "PrimaryAndRanges"}, lacks, "%s", out)
	assert.Equal(t, 2, r.Counts(report.Note).Failed, "%s", out)
}

// A second program that exits is named, in every report.
func TestADeadProgramBeside(t *testing.T) {
	t.Parallel() // it waits for a program that never becomes ready
	program := "exec sleep 1000"
	r, passed, out := judged(t, "--even-if-busy", "--start-timeout", "20s", "--proxy", program,
		"--beside", "exit 3", "--beside-name", "broken",
		"--assume", "nodeports=all")
	assert.False(t, passed)
	assert.Contains(t, r.Problem, "broken: the program has ended by itself: exit status 3")
	assert.Contains(t, r.Problem, "exec: the program never became ready")
	assert.Equal(t, "broken", r.Beside.Name)
	assert.Contains(t, out, "exec beside broken")
}
