package command

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestMain(m *testing.M) {
	testkit.Main(m)
}

// kubeProxyFlags are the flags of kube-proxy 1.37 on Linux, with their defaults.
var kubeProxyFlags = map[string]string{
	"config": "", "write-config-to": "", "cleanup": "false", "init-only": "false", "version": "false",
	"feature-gates": "",

	"kubeconfig": "", "master": "", "hostname-override": "",
	"kube-api-content-type": "application/vnd.kubernetes.protobuf", "kube-api-burst": "10", "kube-api-qps": "5",

	"bind-address": "0.0.0.0", "healthz-bind-address": "0.0.0.0:10256", "metrics-bind-address": "127.0.0.1:10249",
	"bind-address-hard-fail": "false", "profiling": "false", "healthz-port": "10256", "metrics-port": "10249",
	"show-hidden-metrics-for-version": "", "config-sync-period": "15m0s",

	"proxy-mode": "", "masquerade-all": "false", "nodeport-addresses": "[]", "oom-score-adj": "-999",
	"detect-local-mode": "", "cluster-cidr": "", "pod-bridge-interface": "", "pod-interface-name-prefix": "",

	"iptables-masquerade-bit": "14", "iptables-localhost-nodeports": "true",
	"iptables-sync-period": "30s", "iptables-min-sync-period": "1s",

	"ipvs-sync-period": "30s", "ipvs-min-sync-period": "1s", "ipvs-scheduler": "", "ipvs-exclude-cidrs": "[]",
	"ipvs-strict-arp":  "false",
	"ipvs-tcp-timeout": "0s", "ipvs-tcpfin-timeout": "0s", "ipvs-udp-timeout": "0s",

	"conntrack-max-per-core": "32768", "conntrack-min": "131072", "conntrack-tcp-timeout-established": "24h0m0s",
	"conntrack-tcp-timeout-close-wait": "1h0m0s", "conntrack-tcp-be-liberal": "false", "conntrack-udp-timeout": "0s",
	"conntrack-udp-timeout-stream": "0s",

	"logging-format": "text", "log-flush-frequency": "5s", "v": "0", "vmodule": "", "log-text-split-stream": "false",
	"log-text-info-buffer-size": "0", "log-json-split-stream": "false", "log-json-info-buffer-size": "0",
	"boot-id-file":    "/proc/sys/kernel/random/boot_id",
	"machine-id-file": "/etc/machine-id,/var/lib/dbus/machine-id",
}

// brainFlags are the flags that kube-proxy does not have.
var brainFlags = []string{"server", "tls-cert-file", "tls-private-key-file", "ca-file", "insecure",
	"server-state-file", "server-state-max-age"}

// kubeProxyFlagsOfWindows are those that kube-proxy has there besides.
var kubeProxyFlagsOfWindows = map[string]string{
	"enable-dsr": "false", "forward-healthcheck-vip": "false", "network-name": "", "root-hnsendpoint-name": "cbr0",
	"source-vip": "", "windows-service": "false",
}

func TestTheFlagsAreKubeProxysWithItsDefaults(t *testing.T) {
	want := maps.Clone(kubeProxyFlags)
	if runtime.GOOS == "windows" {
		maps.Copy(want, kubeProxyFlagsOfWindows)
	}
	f, err := parseFlags(nil, &bytes.Buffer{})
	require.NoError(t, err)
	got := map[string]string{}
	f.set.VisitAll(func(flag *pflag.Flag) { got[flag.Name] = flag.DefValue })
	for _, name := range append(slices.Clone(brainFlags), "page", "page-bind-address", "ipvs-interface",
		"ipvs-marks", "service-limits", "namespace-limits") {
		assert.Contains(t, got, name)
		assert.Contains(t, besideFile(), name, "a configuration file cannot say it")
		delete(got, name)
	}
	for _, name := range []string{"iptables-min-sync-period", "ipvs-min-sync-period"} {
		want[name] = "0s" // by cost, unless the flag is given: kube-proxy's is 1s
	}
	assert.Equal(t, want, got)
}

// settings are what flags come to.
type settings struct {
	dropin.Config
	*v1alpha2.KubeProxyConfiguration
}

// fromArgs returns the settings that flags come to, and the warnings.
func fromArgs(t *testing.T, args ...string) (settings, []string) {
	c, err := Parse(args, io.Discard)
	require.NoError(t, err)
	var lines []string
	for _, w := range c.Warnings {
		lines = append(lines, w.String())
	}
	return settings{c.Config, c.Config.Configuration}, lines
}

// run runs the program with arguments that make it end by itself, and returns what it logs and prints.
func run(t *testing.T, args ...string) (logged, printed string, err error) {
	var log, out bytes.Buffer
	c, err := Parse(args, &out)
	if err != nil {
		return "", out.String(), err
	}
	c.ApplyLogging = nil
	logger := funcr.New(func(prefix, args string) { log.WriteString(prefix + " " + args + "\n") }, funcr.Options{})
	err = c.Run(klog.NewContext(t.Context(), logger))
	return log.String(), out.String(), err
}

// needModeOf skips tests whose arguments ask for a mode of Linux, which is refused on Windows.
func needModeOf(t *testing.T, args []string) {
	t.Helper()
	if runtime.GOOS == "windows" && slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(strings.ReplaceAll(arg, "_", "-"), "--proxy-mode=")
	}) {
		t.Skip("this is about a mode of Linux, which is refused here")
	}
}

func TestFlagsBecomeTheConfiguration(t *testing.T) {
	type S = settings
	for name, tc := range map[string]struct {
		args []string
		got  func(S) any
		want any
	}{
		"nothing is said": {nil, func(s S) any { return s.Mode }, v1alpha2.ProxyMode("")},
		"a mode": {[]string{"--proxy-mode=nftables"}, func(s S) any { return s.Mode },
			v1alpha2.ProxyModeNFTables},
		"underscores": {[]string{"--proxy_mode=nftables"}, func(s S) any { return s.Mode },
			v1alpha2.ProxyModeNFTables},
		"the node's name is trimmed and lower": {[]string{"--hostname-override= Node-1 "},
			func(s S) any { return s.HostnameOverride }, "node-1"},
		"two pod CIDRs": {[]string{"--cluster-cidr=10.0.0.0/8,fd00::/8"},
			func(s S) any { return s.DetectLocal.ClusterCIDRs }, []string{"10.0.0.0/8", "fd00::/8"}},
		"the primary IP": {[]string{"--bind-address=192.0.2.1"},
			func(s S) any { return s.NodeIPOverride }, []string{"192.0.2.1"}},
		"no primary IP": {[]string{"--bind-address=::"},
			func(s S) any { return s.NodeIPOverride }, []string(nil)},
		"iptables periods count for nftables": {[]string{"--proxy-mode=nftables", "--iptables-sync-period=7s"},
			func(s S) any { return s.SyncPeriod.Duration }, 7 * time.Second},
		"and for no mode": {[]string{"--iptables-min-sync-period=3s"},
			func(s S) any { return s.MinSyncPeriod.Duration }, 3 * time.Second},
		"no minimum period": {[]string{"--iptables-min-sync-period=0"},
			func(s S) any { return s.MinSyncPeriod.Duration }, time.Duration(0)},
		"minimum periods are not set": {[]string{"--ipvs-min-sync-period=3s"},
			func(s S) any { return s.MinSyncPeriod == nil }, true},
		"the default of kube-proxy can be": {[]string{"--proxy-mode=ipvs", "--ipvs-min-sync-period=1s"},
			func(s S) any { return s.MinSyncPeriod.Duration }, time.Second},
		"ipvs periods count for ipvs": {[]string{"--proxy-mode=ipvs", "--ipvs-sync-period=9s",
			"--iptables-sync-period=7s"}, func(s S) any { return s.SyncPeriod.Duration }, 9 * time.Second},
		"and not for nftables": {[]string{"--proxy-mode=nftables", "--ipvs-sync-period=9s"},
			func(s S) any { return s.SyncPeriod.Duration }, 30 * time.Second},
		"masquerade all in nftables": {[]string{"--proxy-mode=nftables", "--masquerade-all"},
			func(s S) any { return s.Linux.MasqueradeAll }, true},
		"masquerade all in no mode": {[]string{"--masquerade-all"},
			func(s S) any { return s.Linux.MasqueradeAll }, true},
		"the default port is added": {[]string{"--healthz-bind-address=192.0.2.1"},
			func(s S) any { return s.HealthzBindAddress }, "192.0.2.1:10256"},
		"another port is added": {[]string{"--metrics-bind-address=::1", "--metrics-port=9"},
			func(s S) any { return s.MetricsBindAddress }, "[::1]:9"},
		"a port is there already": {[]string{"--healthz-bind-address=[::]:7", "--healthz-port=9"},
			func(s S) any { return s.HealthzBindAddress }, "[::]:7"},
		"health on no port": {[]string{"--healthz-port=0"},
			func(s S) any { return []bool{s.NoHealthz, s.NoMetrics} }, []bool{true, false}},
		"metrics on no address": {[]string{"--metrics-bind-address="},
			func(s S) any { return []bool{s.NoHealthz, s.NoMetrics} }, []bool{false, true}},
		"verbosity": {[]string{"-v=4"},
			func(s S) any { return int(s.Logging.Verbosity) }, 4},
		"feature gates": {[]string{"--feature-gates=AllowServiceExternalIPs=false"},
			func(s S) any { return s.FeatureGates }, map[string]bool{"AllowServiceExternalIPs": false}},
		"failing to bind is not an end by default": {nil, func(s S) any { return *s.BindAddressHardFail }, false},
		"master": {[]string{"--master=https://a:1"}, func(s S) any { return s.Master }, "https://a:1"},
		"conntrack": {[]string{"--conntrack-max-per-core=0", "--conntrack-udp-timeout=9s"},
			func(s S) any { return []any{*s.Linux.Conntrack.MaxPerCore, s.Linux.Conntrack.UDPTimeout.Duration} },
			[]any{int32(0), 9 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			needModeOf(t, tc.args)
			s, _ := fromArgs(t, tc.args...)
			assert.Equal(t, tc.want, tc.got(s))
		})
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ arg, want string }{
		"no version":         {"--version=x", "invalid syntax"},
		"an argument":        {"now", `unexpected argument "now"`},
		"an unknown flag":    {"--twice", "unknown flag: --twice"},
		"no IP":              {"--bind-address=here", `"here" is not an IP address`},
		"no IP and port":     {"--metrics-bind-address=here", `"here" is neither IP nor IP:port`},
		"a host's name":      {"--metrics-bind-address=here:80", `"here" is not an IP address`},
		"no port":            {"--healthz-bind-address=1.2.3.4:none", `"none" is not a port`},
		"an unknown mode":    {"--proxy-mode=userspace", `"userspace"`},
		"a wrong CIDR":       {"--cluster-cidr=10.0.0.0", "clusterCIDRs"},
		"a wrong score":      {"--oom-score-adj=2000", "oomScoreAdj"},
		"no period":          {"--iptables-sync-period=0", "syncPeriod"},
		"no refreshing":      {"--config-sync-period=0", "configSyncPeriod"},
		"a name that isn't":  {"--hostname-override= ", "--hostname-override"},
		"a file that is not": {"--config=/nowhere/config.yaml", "/nowhere/config.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]string{tc.arg}, io.Discard)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

func TestArgumentsThatAreEmptyAreIgnored(t *testing.T) {
	s, _ := fromArgs(t, "", "--hostname-override=n2", "")
	assert.Equal(t, "n2", s.HostnameOverride)
	_, err := Parse([]string{"", "now"}, io.Discard)
	assert.ErrorContains(t, err, `unexpected argument "now"`)
}

func TestFlagsWithoutEffectAreNamed(t *testing.T) {
	needModeOf(t, []string{"--proxy-mode=nftables"})
	const no, isNo = ": accepted, but has no effect: ", " is accepted, but has no effect: "
	for _, tc := range [][2]string{
		{"--ipvs-scheduler=lc", "--ipvs-scheduler" + no + "it is for mode ipvs"},
		{"--proxy-mode=nftables --iptables-localhost-nodeports=false",
			"--iptables-localhost-nodeports" + no + "it is for mode iptables"},
		{"--proxy-mode=nftables --iptables-masquerade-bit=3",
			"--iptables-masquerade-bit" + no + "it is for modes iptables and ipvs"},
		{"--boot-id-file=/x", "--boot-id-file" + no + "the file is not read"},
		{"--machine-id-file=/x", "--machine-id-file" + no + "the file is not read"},
		{"--config-sync-period=1m",
			"configSyncPeriod" + no + "changes are applied as they come, without periodic resyncs"},
		{"--show-hidden-metrics-for-version=1.35", "showHiddenMetricsForVersion" + no + "no metric is hidden"},
		{"--feature-gates=New=true", "featureGates: New" + isNo + "no such feature gate"},
		{"--feature-gates=NFTablesNetlink=false",
			"featureGates: NFTablesNetlink" + isNo + "the feature is always enabled"},
		{"--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true",
			"featureGates: KubeProxyNFTablesLocalhostNodePorts" + isNo + "it is for mode nftables"},
		{"--proxy-mode=nftables --feature-gates=KubeProxyNFTablesLocalhostNodePorts=true",
			"featureGates: KubeProxyNFTablesLocalhostNodePorts" + isNo + "nodePortAddresses includes no loopback address"},
		{"--healthz-port=9", "--healthz-port: deprecated: use --healthz-bind-address"},
	} {
		_, warnings := fromArgs(t, strings.Fields(tc[0])...)
		assert.Equal(t, tc[1:], warnings, tc[0])
	}
	_, warnings := fromArgs(t, "--proxy-mode=nftables", "--iptables-sync-period=20s", "--conntrack-min=1",
		"--feature-gates=AllowServiceExternalIPs=true,LoggingAlphaOptions=true,LoggingBetaOptions=true,"+
			"ContextualLogging=true")
	assert.Empty(t, warnings, "these have an effect")
	_, warnings = fromArgs(t, "--feature-gates=NFTablesNetlink=true,WinDSR=true,AllBeta=false,AllAlpha=true,"+
		"KubeProxyIPVS=false,KubeProxyNFTablesLocalhostNodePorts=false,ComponentStatusz=false")
	assert.Empty(t, warnings, "some are as they are set anyway, the others have an effect")
	_, warnings = fromArgs(t, "--proxy-mode=nftables", "--nodeport-addresses=10.0.0.0/8,::1/128",
		"--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true")
	assert.Empty(t, warnings, "so has this one")
	_, warnings = fromArgs(t, "--iptables-localhost-nodeports=false", "--iptables-masquerade-bit=3")
	assert.Empty(t, warnings, "so have these in the default mode")
}

// startsLogging runs the program up to where it would begin, with its real logging.
func startsLogging(t *testing.T, args ...string) error {
	gates, err := config.Gates(v1alpha2.Default())
	require.NoError(t, err)
	defer func() {
		require.NoError(t, logsapi.ResetForTest(gates))
		klog.StopFlushDaemon() // ResetForTest starts it again
	}()
	c, err := Parse(append(args, "--write-config-to="+filepath.Join(t.TempDir(), "written.yaml")), io.Discard)
	if err != nil {
		return err
	}
	return c.Run(t.Context())
}

func TestLoggingOptionsThatNeedAFeatureGate(t *testing.T) {
	assert.ErrorContains(t, startsLogging(t, "--log-text-split-stream"), "LoggingAlphaOptions is disabled")
	assert.NoError(t, startsLogging(t, "--log-text-split-stream", "--feature-gates=LoggingAlphaOptions=true"))
}

func TestLoggingInJSON(t *testing.T) {
	assert.NoError(t, startsLogging(t, "--logging-format=json"))
	assert.NoError(t, startsLogging(t,
		"--config="+writeFile(t, kubeadmFile[:strings.Index(kubeadmFile, "logging:")]+"logging: {format: json}\n")))
	assert.ErrorContains(t, startsLogging(t, "--logging-format=xml"), "Unsupported log format")
}

// writeFile writes a file for a test, and returns its path.
func writeFile(t *testing.T, content string) string {
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

const kubeadmFile = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16
hostnameOverride: from-the-file
logging: {verbosity: 2, vmodule: [{filePattern: run, verbosity: 3}]}
mode: ""
`

func TestWithAFileOnlySomeFlagsCount(t *testing.T) {
	s, warnings := fromArgs(t, "--config="+writeFile(t, kubeadmFile), "--hostname-override=From-The-Flag",
		"--master=https://a:1",
		"--proxy-mode=ipvs", "--cluster-cidr=10.0.0.0/8", "--metrics-port=0", "-v=6")
	assert.Equal(t, "from-the-flag", s.HostnameOverride)
	assert.Equal(t, "https://a:1", s.Master)
	assert.Equal(t, v1alpha2.ProxyMode(""), s.Mode)
	assert.Equal(t, []string{"10.244.0.0/16"}, s.DetectLocal.ClusterCIDRs)
	assert.False(t, s.NoMetrics)
	assert.EqualValues(t, 6, s.Logging.Verbosity)
	assert.Len(t, s.Logging.VModule, 1, "what no flag says stays as the file has it")
	assert.ElementsMatch(t, []string{
		"--cluster-cidr: ignored because a configuration file is given",
		"--metrics-port: ignored because a configuration file is given",
		"--proxy-mode: ignored because a configuration file is given",
	}, warnings)
}

func TestAMalformedFileIsRefusedByItsName(t *testing.T) {
	path := writeFile(t, "mode: [nftables")
	_, err := Parse([]string{"--config=" + path}, io.Discard)
	assert.ErrorContains(t, err, "configuration "+path+": malformed file")
	path = writeFile(t, kubeadmFile+"oomScoreAdj: 5000\nnodePortAddresses: [here]\n")
	_, err = Parse([]string{"--config=" + path}, io.Discard)
	assert.ErrorContains(t, err, "oomScoreAdj")
	assert.ErrorContains(t, err, "nodePortAddresses[0]")
}

func TestWriteConfigTo(t *testing.T) {
	for name, args := range map[string][]string{
		"from flags": {"--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16", "--bind-address=192.0.2.1",
			"--masquerade-all", "--kubeconfig=/k"},
		"from a file": {"--config=" + writeFile(t, kubeadmFile), "--hostname-override=n2"},
	} {
		t.Run(name, func(t *testing.T) {
			needModeOf(t, args)
			path := filepath.Join(t.TempDir(), "written.yaml")
			_, _, err := run(t, append(args, "--write-config-to="+path)...)
			require.NoError(t, err)
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			fakemodel.Golden(t, "testdata/write-config-"+strings.ReplaceAll(name, " ", "-")+".yaml", string(data))
			read, warnings := fromArgs(t, "--config="+path)
			assert.Empty(t, warnings)
			want, _ := fromArgs(t, args...)
			assert.Equal(t, want.KubeProxyConfiguration, read.KubeProxyConfiguration)
		})
	}
	_, _, err := run(t, "--write-config-to=/nowhere/x.yaml")
	assert.ErrorContains(t, err, "--write-config-to: open /nowhere/x.yaml")
}

func TestFlagsThatWriteConfigToCannotWriteAreNamed(t *testing.T) {
	const (
		off    = ": disabling it is dropped: a configuration file cannot express that"
		beside = ": is dropped: pass this flag in addition to the configuration file"
	)
	all := map[string]string{
		"--healthz-port=0": "healthzBindAddress" + off, "--healthz-bind-address=": "healthzBindAddress" + off,
		"--metrics-port=0": "metricsBindAddress" + off, "--metrics-bind-address=": "metricsBindAddress" + off,
		"--ipvs-marks=0x3fff":            "--ipvs-marks" + beside,
		"--ipvs-interface=x":             "--ipvs-interface" + beside,
		"--service-limits=frontends=1":   "--service-limits" + beside,
		"--namespace-limits=frontends=1": "--namespace-limits" + beside,
		"--page":                         "--page" + beside,
		"--master=https://a:1":           `--master: \"https://a:1\"` + beside[1:],
	}
	for arg, want := range all {
		logged, _, err := run(t, arg, "--write-config-to="+filepath.Join(t.TempDir(), "written.yaml"))
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(logged, "is dropped"), arg)
		assert.Contains(t, logged, want, arg)
	}
	logged, _, err := run(t, "--write-config-to="+filepath.Join(t.TempDir(), "written.yaml"))
	require.NoError(t, err)
	assert.NotContains(t, logged, "is dropped")
}

func TestVersion(t *testing.T) {
	for arg, want := range map[string]string{
		"--version":      `^kube-proxy-lib \S+\n$`,
		"--version=true": `^kube-proxy-lib \S+\n$`,
		"--version=raw":  `^kube-proxy-lib \ngo\t(.*\n)+$`,
	} {
		_, printed, err := run(t, arg)
		require.NoError(t, err)
		assert.Regexp(t, want, printed, arg)
	}
	_, printed, err := run(t, "--version=false", "--write-config-to="+filepath.Join(t.TempDir(), "written.yaml"))
	require.NoError(t, err)
	assert.Empty(t, printed)
}

// The text for --help reads as a person would want it; this test is for looking at it.
func TestHelp(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it has flags of its own")
	}
	var out bytes.Buffer
	_, err := Parse([]string{"--help"}, &out)
	require.ErrorIs(t, err, pflag.ErrHelp)
	fakemodel.Golden(t, "testdata/help.txt", out.String())
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "      --log-") { // Kubernetes' own words
			assert.Less(t, len(line), 160, "one line for each flag")
		}
	}
}

// Each flag is in one group.
func TestEachFlagIsInAGroup(t *testing.T) {
	f, err := parseFlags(nil, io.Discard)
	require.NoError(t, err)
	count := map[string]int{}
	for _, g := range f.groups {
		g.flags.VisitAll(func(flag *pflag.Flag) { count[flag.Name]++ })
	}
	f.set.VisitAll(func(flag *pflag.Flag) { assert.Equal(t, 1, count[flag.Name], flag.Name) })
}

func TestAWrongFlagSaysWhereToLook(t *testing.T) {
	_, err := Parse([]string{"--nonsense"}, io.Discard)
	assert.EqualError(t, err, "unknown flag: --nonsense; see kube-proxy --help")
}

func TestLimitsNameWhatTheyLimit(t *testing.T) {
	s, warnings := fromArgs(t, "--service-limits=frontends=7, destinations=9,endpoints=8",
		"--namespace-limits=source-ranges=5,sticky-endpoints=4,sticky-ports=3", "--namespace-limits=frontends=6",
		"--namespace-limits=restricted-ports=2")
	assert.Empty(t, warnings)
	assert.Equal(t, frontend.Limits{Service: frontend.Budget{Frontends: 7, Destinations: 9},
		Namespace: frontend.Budget{Frontends: 6, SourceRanges: 5, RestrictedPorts: 2, StickyEndpoints: 4,
			StickyPorts: 3}}, s.Limits)
	assert.Equal(t, localstate.EndpointLimits{Service: 8}, s.EndpointLimits)
	assert.Equal(t, "endpoints=8,frontends=7,destinations=9", s.Flags["service-limits"])
	for arg, want := range map[string]string{
		"--service-limits=7": `"7" is not one of endpoints=N, frontends=N, source-ranges=N, ` +
			`restricted-ports=N, destinations=N, sticky-endpoints=N, sticky-ports=N`,
		"--service-limits=":                                   `"" is not one of endpoints=N`,
		"--service-limits=frontends":                          `"frontends": "" is not a number above 0`,
		"--namespace-limits=frontends=0":                      `"frontends=0": "0" is not a number above 0`,
		"--namespace-limits=destinations=-3":                  `"-3" is not a number above 0`,
		"--namespace-limits=frontends=1,ports=2":              `"ports=2" is not one of`,
		"--namespace-limits=frontends=9999999999999999999999": `is not a number above 0`,
	} {
		_, err := Parse([]string{arg}, io.Discard)
		assert.ErrorContains(t, err, want, arg)
	}
}
