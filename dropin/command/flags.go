package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/internal/program/brainflags"
)

// flags are the flags of kube-proxy, with its names and defaults. Flags for a field of the configuration write to a
// v1alpha1 configuration, which has the same defaults.
//
// A new setting is a field of package dropin/config/v1alpha2, or of [dropin.Config] if no file has it, and a flag here.
// What happens to one of the second kind when a file is written is in settings.go. All are in docs/configuration.md.
type flags struct {
	set    *pflag.FlagSet
	groups []group
	fields v1alpha1.KubeProxyConfiguration

	configFile, writeConfigTo string
	master, hostnameOverride  string
	cleanup, initOnly         bool
	version                   versionValue
	page                      bool
	pageAddress               string
	server                    brainflags.Flags

	// Flags without their own field.
	healthzPort, metricsPort              int32
	masqueradeAll                         bool
	iptablesSyncPeriod, iptablesMinPeriod time.Duration
	ipvsSyncPeriod, ipvsMinPeriod         time.Duration
	ipvsInterface                         string
	ipvsMarks                             uint32
	limited                               dropin.Config // its Limits and EndpointLimits
}

// parseFlags parses the command line. Like kube-proxy, it accepts underscores for dashes in flag names.
func parseFlags(args []string, usage io.Writer) (*flags, error) {
	f := &flags{set: pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)}
	f.set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	f.set.SetOutput(usage)
	f.set.SortFlags = false
	config.SetDefaultsV1alpha1(&f.fields)
	f.group("What to do", f.addProgram)
	f.group("The API server and this node", f.addAPI)
	f.group("A brain instead of the API server", f.addServer)
	f.group("What the program serves itself", f.addServing)
	f.group("Proxying", f.addProxying)
	f.group("What Services may cost", f.addLimits)
	f.group("Mode iptables, and all modes but ipvs", f.addIPTables)
	f.group("Mode ipvs", f.addIPVS)
	f.group("Connection tracking", f.addConntrack)
	if runtime.GOOS == "windows" {
		f.group("Windows", f.addWindows)
	}
	f.group("Logging", func() { logsapi.AddFlags(&f.fields.Logging, f.set) })
	f.group("Accepted for compatibility, without effect", f.addWithoutEffect)
	f.set.Usage = func() { f.printUsage(usage) }
	if err := f.set.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("%w; see kube-proxy --help", err)
	}
	for _, arg := range f.set.Args() {
		if arg != "" { // like kube-proxy, for example for an empty variable in a manifest
			return nil, fmt.Errorf("unexpected argument %q; see kube-proxy --help", arg)
		}
	}
	return f, nil
}

func (f *flags) addProgram() {
	f.set.StringVar(&f.configFile, "config", "",
		"read the configuration from this `file` (v1alpha1 or v1alpha2) and ignore the flags that it has fields for")
	f.set.StringVar(&f.writeConfigTo, "write-config-to", "",
		"write the configuration to this `file` as v1alpha2, and exit")
	f.set.BoolVar(&f.cleanup, "cleanup", false, "remove all rules that this program has made, and exit")
	f.set.BoolVar(&f.initOnly, "init-only", false,
		"set the kernel parameters and exit, for a privileged init container")
	f.set.Var(&f.version, "version", "print the version and exit (raw: with all build information)")
	f.set.Lookup("version").NoOptDefVal = "true"
	f.set.Var(cliflag.NewMapStringBool(&f.fields.FeatureGates), "feature-gates",
		"turn feature gates on or off, as `name=bool,...` (see docs/configuration.md)")
}

func (f *flags) addAPI() {
	c := &f.fields.ClientConnection
	f.set.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"kubeconfig `file` (default: the pod's service account)")
	f.set.StringVar(&f.master, "master", "", "`URL` of the API server, instead of the one in the kubeconfig file")
	f.set.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType,
		"content `type` of requests to the API server")
	f.set.Int32Var(&c.Burst, "kube-api-burst", c.Burst,
		"maximum number of requests to send to the API server at once")
	f.set.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "maximum number of requests per second to the API server")
	f.set.StringVar(&f.hostnameOverride, "hostname-override", "",
		"`name` of this node's Node object (default: the hostname)")
}

// addServer adds flags for state from a brain, which kube-proxy does not have.
func (f *flags) addServer() {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	f.server.Register(set)
	f.server.RegisterKeep(set)
	f.set.AddFlag(pflag.PFlagFromGoFlag(set.Lookup("server"))) // only the first flag is listed by --help
	f.set.AddGoFlagSet(set)
}

func (f *flags) addServing() {
	c := &f.fields
	f.set.Var(ipValue{&c.BindAddress}, "bind-address",
		"primary `IP` of the node, if not the one of its Node object; nothing listens on it")
	f.set.Var(ipPortValue{&c.HealthzBindAddress}, "healthz-bind-address",
		"serve /healthz and /livez on this `IP:port`; empty turns them off")
	f.set.Var(ipPortValue{&c.MetricsBindAddress}, "metrics-bind-address",
		"serve /metrics and the like on this `IP:port`; empty turns them off")
	f.set.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", c.BindAddressHardFail,
		"exit if one of these addresses is in use")
	f.set.BoolVar(&c.EnableProfiling, "profiling", c.EnableProfiling, "serve /debug/pprof beside /metrics")
	f.set.BoolVar(&f.page, "page", false,
		"serve a web page at /page/ that shows what this program does")
	f.set.StringVar(&f.pageAddress, "page-bind-address", "",
		"loopback `IP:port` of the page (default: with the metrics, if these are on loopback)")
	f.set.Int32Var(&f.healthzPort, "healthz-port", 10256,
		"port of --healthz-bind-address if it has none; 0 turns it off (deprecated)")
	f.set.Int32Var(&f.metricsPort, "metrics-port", 10249,
		"port of --metrics-bind-address if it has none; 0 turns it off (deprecated)")
}

func (f *flags) addProxying() {
	c := &f.fields
	f.set.Var((*textValue[v1alpha1.ProxyMode])(&c.Mode), "proxy-mode",
		"`mode`: iptables (default), nftables or ipvs; on Windows kernelspace")
	f.set.BoolVar(&f.masqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	f.set.Var((*textValue[v1alpha1.LocalMode])(&c.DetectLocalMode), "detect-local-mode",
		"how to detect local pods: ClusterCIDR (default), NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	f.set.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR,
		"pod `CIDRs` of the cluster, for ClusterCIDR")
	f.set.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "",
		"`name` of the pods' bridge, for BridgeInterface")
	f.set.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "",
		"`prefix` of the names of pod interfaces, for InterfaceNamePrefix")
	f.set.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses,
		"where node ports are served: `list` of CIDRs, primary (default in mode nftables), localhost, all")
	f.set.Int32Var(c.OOMScoreAdj, "oom-score-adj", *c.OOMScoreAdj, "OOM score of this process, -1000 to 1000")
}

// addLimits adds flags that kube-proxy does not have.
func (f *flags) addLimits() {
	service, namespace := &f.limited.Limits.Service, &f.limited.Limits.Namespace
	endpoints := &f.limited.EndpointLimits
	f.set.Var(limitsValue{&endpoints.Service, &service.Frontends, &service.SourceRanges, &service.RestrictedPorts,
		&service.Destinations, &service.StickyEndpoints, &service.StickyPorts},
		"service-limits", "`limits` (endpoints=262144,frontends=131072,source-ranges=16384,"+
			"restricted-ports=24576,destinations=1048576,sticky-* vary)")
	f.set.Var(limitsValue{&endpoints.Namespace, &namespace.Frontends, &namespace.SourceRanges,
		&namespace.RestrictedPorts, &namespace.Destinations, &namespace.StickyEndpoints, &namespace.StickyPorts},
		"namespace-limits", "`limits` (endpoints=1048576,frontends=524288,"+
			"source-ranges=262144,restricted-ports=32768,destinations=4194304,sticky-* vary)")
}

const minPeriod = "wait this long between two syncs; 0: only for listings " +
	"(default nine times what the last one took, 5ms to 1s)"

func (f *flags) addIPTables() {
	c := &f.fields.IPTables
	f.set.Int32Var(c.MasqueradeBit, "iptables-masquerade-bit", *c.MasqueradeBit,
		"bit of the packet mark that asks for masquerading, 0 to 31; also in mode ipvs")
	f.set.BoolVar(c.LocalhostNodePorts, "iptables-localhost-nodeports", *c.LocalhostNodePorts,
		"serve node ports on 127.0.0.1, too, in mode iptables")
	f.set.DurationVar(&f.iptablesSyncPeriod, "iptables-sync-period", c.SyncPeriod.Duration,
		"retry a failed sync after at most this time")
	f.set.DurationVar(&f.iptablesMinPeriod, "iptables-min-sync-period", 0, minPeriod)
}

func (f *flags) addIPVS() {
	c := &f.fields.IPVS
	f.set.DurationVar(&f.ipvsSyncPeriod, "ipvs-sync-period", c.SyncPeriod.Duration,
		"retry a failed sync after at most this time")
	f.set.DurationVar(&f.ipvsMinPeriod, "ipvs-min-sync-period", 0, minPeriod)
	f.set.StringVar(&c.Scheduler, "ipvs-scheduler", c.Scheduler, "`name` of the IPVS scheduler (default rr)")
	f.set.StringSliceVar(&c.ExcludeCIDRs, "ipvs-exclude-cidrs", c.ExcludeCIDRs,
		"never delete virtual servers in these `CIDRs`")
	f.set.BoolVar(&c.StrictARP, "ipvs-strict-arp", c.StrictARP,
		"answer ARP only for addresses of the receiving interface (sets arp_ignore and arp_announce)")
	f.set.DurationVar(&c.TCPTimeout.Duration, "ipvs-tcp-timeout", 0,
		"timeout of idle TCP connections; 0: leave unchanged")
	f.set.DurationVar(&c.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0,
		"timeout of TCP connections after a FIN; 0: leave unchanged")
	f.set.DurationVar(&c.UDPTimeout.Duration, "ipvs-udp-timeout", 0,
		"timeout of UDP flows; 0: leave unchanged")
	// kube-proxy does not have these.
	f.set.StringVar(&f.ipvsInterface, "ipvs-interface", "",
		"`name` of the dummy interface, also for --cleanup (default kpl-ipvs0)")
	f.set.Uint32Var(&f.ipvsMarks, "ipvs-marks", 0,
		"`bits` of the packet mark to use (default 0xffff00ff without the masquerade bit)")
}

func (f *flags) addConntrack() {
	c := &f.fields.Conntrack
	f.set.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore,
		"connections to track per CPU; 0: leave the limit unchanged, whatever --conntrack-min says")
	f.set.Int32Var(c.Min, "conntrack-min", *c.Min,
		"minimum number of connections to track, however few CPUs there are")
	f.set.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established",
		c.TCPEstablishedTimeout.Duration, "timeout of idle TCP connections; 0: leave unchanged")
	f.set.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait",
		c.TCPCloseWaitTimeout.Duration, "timeout of TCP connections in CLOSE_WAIT; 0: leave unchanged")
	f.set.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", c.TCPBeLiberal,
		"accept TCP packets outside of the window")
	f.set.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0,
		"timeout of UDP flows without a reply; 0: leave unchanged")
	f.set.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0,
		"timeout of UDP flows with replies; 0: leave unchanged")
}

// addWindows adds flags that kube-proxy has only on Windows.
func (f *flags) addWindows() {
	c := &f.fields.Winkernel
	f.set.BoolVar(&f.fields.WindowsRunAsService, "windows-service", false, "run as a Windows service")
	f.set.StringVar(&c.NetworkName, "network-name", "",
		"`name` of the HNS network (default: $KUBE_NETWORK)")
	f.set.StringVar(&c.SourceVip, "source-vip", "",
		"source `IP` of masqueraded traffic in an overlay network")
	f.set.BoolVar(&c.EnableDSR, "enable-dsr", false, "let endpoints reply to clients directly (DSR)")
	f.set.StringVar(&c.RootHnsEndpointName, "root-hnsendpoint-name", "cbr0",
		"`name` of the node's own HNS endpoint")
	f.set.BoolVar(&c.ForwardHealthCheckVip, "forward-healthcheck-vip", false,
		"let the node itself answer health checks of load-balancer IPs")
}

// addWithoutEffect adds flags that have no effect, so that kube-proxy's command lines work.
func (f *flags) addWithoutEffect() {
	c := &f.fields
	f.set.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration,
		"changes are applied as they come")
	f.set.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "no metric is hidden")
	f.set.String("boot-id-file", "/proc/sys/kernel/random/boot_id", "not read")
	f.set.String("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "not read")
}
