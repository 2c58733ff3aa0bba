package command

import (
	"flag"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/internal/brainflags"
)

// flags are the flags of kube-proxy, by their names and with their defaults. Those that stand for a field of the
// configuration write to a configuration of version v1alpha1, whose defaults they have.
type flags struct {
	set    *pflag.FlagSet
	fields v1alpha1.KubeProxyConfiguration

	configFile, writeConfigTo string
	master, hostnameOverride  string
	cleanup, initOnly         bool
	version                   versionValue
	page                      bool
	server                    brainflags.Flags

	// These have no field of their own.
	healthzPort, metricsPort              int32
	masqueradeAll                         bool
	iptablesSyncPeriod, iptablesMinPeriod time.Duration
	ipvsSyncPeriod, ipvsMinPeriod         time.Duration
	ipvsInterface                         string
	ipvsMarks                             uint32
}

// parseFlags reads the command line. Underscores in the names of flags are taken for dashes, as kube-proxy does.
func parseFlags(args []string, usage io.Writer) (*flags, error) {
	f := &flags{set: pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)}
	f.set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	f.set.SetOutput(usage)
	f.set.SortFlags = false
	config.SetDefaultsV1alpha1(&f.fields)
	f.addProgram()
	f.addAPI()
	f.addServer()
	f.addServing()
	f.addProxying()
	f.addIPTables()
	f.addIPVS()
	f.addConntrack()
	if runtime.GOOS == "windows" {
		f.addWindows()
	}
	f.addWithoutEffect()
	logsapi.AddFlags(&f.fields.Logging, f.set)
	if err := f.set.Parse(args); err != nil {
		return nil, err
	}
	for _, arg := range f.set.Args() {
		if arg != "" { // as kube-proxy takes it: of a variable in a manifest, say, that is empty
			return nil, fmt.Errorf("unexpected argument %q", arg)
		}
	}
	return f, nil
}

func (f *flags) addProgram() {
	f.set.StringVar(&f.configFile, "config", "",
		"`path` of a configuration file, v1alpha1 or v1alpha2; flags for its fields are then ignored")
	f.set.StringVar(&f.writeConfigTo, "write-config-to", "",
		"write the configuration to this `path`, as v1alpha2, and exit")
	f.set.BoolVar(&f.cleanup, "cleanup", false, "remove all rules of this program, and exit")
	f.set.BoolVar(&f.initOnly, "init-only", false,
		"set the kernel parameters, which needs a privileged container, and exit; fails if one cannot be set")
	f.set.Var(&f.version, "version", "print the version and exit; --version=raw prints all build information")
	f.set.Lookup("version").NoOptDefVal = "true"
	f.set.Var(cliflag.NewMapStringBool(&f.fields.FeatureGates), "feature-gates",
		"feature gates as `name=bool,...`: AllowServiceExternalIPs, ComponentFlagz, ComponentStatusz, "+
			"KubeProxyIPVS, KubeProxyNFTablesLocalhostNodePorts and NativeHistograms")
}

func (f *flags) addAPI() {
	c := &f.fields.ClientConnection
	f.set.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"`path` of a kubeconfig file; without it and --master, the pod's service account is used")
	f.set.StringVar(&f.master, "master", "", "`address` of the API server; overrides the kubeconfig file")
	f.set.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType,
		"content `type` of requests to the API server")
	f.set.Int32Var(&c.Burst, "kube-api-burst", c.Burst,
		"maximum burst of requests to the API server")
	f.set.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "maximum requests per second to the API server")
	f.set.StringVar(&f.hostnameOverride, "hostname-override", "",
		"`name` of this node's Node object (default: the host's name)")
}

// addServer adds flags that kube-proxy does not have, for the state from a brain.
func (f *flags) addServer() {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	f.server.Register(set)
	f.server.RegisterKeep(set)
	f.set.AddGoFlagSet(set)
}

func (f *flags) addServing() {
	c := &f.fields
	f.set.Var(ipValue{&c.BindAddress}, "bind-address",
		"primary `IP` of the node, instead of the one in its Node object; nothing binds to it")
	f.set.Var(ipPortValue{&c.HealthzBindAddress}, "healthz-bind-address",
		"`IP:port` to serve /healthz and /livez on; empty disables them")
	f.set.Var(ipPortValue{&c.MetricsBindAddress}, "metrics-bind-address",
		"`IP:port` to serve metrics on; empty disables them")
	f.set.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", c.BindAddressHardFail,
		"exit if the health or metrics address cannot be bound")
	f.set.BoolVar(&c.EnableProfiling, "profiling", c.EnableProfiling, "serve /debug/pprof with the metrics")
	f.set.BoolVar(&f.page, "page", false,
		"serve a page that shows what this program does, at /page/ with the metrics, which "+
			"have to be on a loopback address then")
	f.set.Int32Var(&f.healthzPort, "healthz-port", 10256,
		"port to use if --healthz-bind-address has none; 0 disables it (deprecated)")
	f.set.Int32Var(&f.metricsPort, "metrics-port", 10249,
		"port to use if --metrics-bind-address has none; 0 disables it (deprecated)")
}

func (f *flags) addProxying() {
	c := &f.fields
	f.set.Var((*textValue[v1alpha1.ProxyMode])(&c.Mode), "proxy-mode",
		"proxy `mode`: iptables (default on Linux), nftables or ipvs; on Windows kernelspace")
	f.set.BoolVar(&f.masqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	f.set.Var((*textValue[v1alpha1.LocalMode])(&c.DetectLocalMode), "detect-local-mode",
		"how to detect traffic from local pods: `mode` ClusterCIDR (default), NodeCIDR, "+
			"BridgeInterface or InterfaceNamePrefix")
	f.set.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR,
		"pod `CIDRs` of the cluster, for mode ClusterCIDR")
	f.set.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "",
		"`name` of the bridge that pods are connected to, for mode BridgeInterface")
	f.set.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "",
		"name `prefix` of pod interfaces, for mode InterfaceNamePrefix")
	f.set.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses,
		"addresses that serve node ports: `list` of CIDRs and the keywords primary (the node's own, "+
			"the default in mode nftables), localhost (127.0.0.0/8 and ::1/128) and all")
	f.set.Int32Var(c.OOMScoreAdj, "oom-score-adj", *c.OOMScoreAdj, "oom_score_adj of this process, from -1000 to 1000")
}

func (f *flags) addIPTables() {
	c := &f.fields.IPTables
	f.set.Int32Var(c.MasqueradeBit, "iptables-masquerade-bit", *c.MasqueradeBit,
		"bit of the packet mark that marks packets to masquerade, 0 to 31, in modes iptables and ipvs")
	f.set.BoolVar(c.LocalhostNodePorts, "iptables-localhost-nodeports", *c.LocalhostNodePorts,
		"also serve node ports on 127.0.0.1, in mode iptables")
	f.set.DurationVar(&f.iptablesSyncPeriod, "iptables-sync-period", c.SyncPeriod.Duration,
		"maximum time until a failed sync is retried, in all modes but ipvs")
	f.set.DurationVar(&f.iptablesMinPeriod, "iptables-min-sync-period", c.MinSyncPeriod.Duration,
		"minimum time between two syncs, in all modes but ipvs; 0: no limit")
}

func (f *flags) addIPVS() {
	c := &f.fields.IPVS
	// The minimum period is that of the other modes: the flag differs from the field of the same name there.
	shared := f.fields.IPTables.MinSyncPeriod.Duration
	f.set.DurationVar(&f.ipvsSyncPeriod, "ipvs-sync-period", c.SyncPeriod.Duration,
		"like --iptables-sync-period, for mode ipvs")
	f.set.DurationVar(&f.ipvsMinPeriod, "ipvs-min-sync-period", shared,
		"like --iptables-min-sync-period, for mode ipvs")
	f.set.StringVar(&c.Scheduler, "ipvs-scheduler", c.Scheduler, "`name` of the IPVS scheduler, for mode ipvs")
	f.set.StringSliceVar(&c.ExcludeCIDRs, "ipvs-exclude-cidrs", c.ExcludeCIDRs,
		"`CIDRs` whose virtual servers mode ipvs never deletes")
	f.set.BoolVar(&c.StrictARP, "ipvs-strict-arp", c.StrictARP,
		"answer ARP only for addresses of the receiving interface (arp_ignore, arp_announce), in mode ipvs")
	f.set.DurationVar(&c.TCPTimeout.Duration, "ipvs-tcp-timeout", 0,
		"timeout of idle TCP connections in mode ipvs; 0: leave unchanged")
	f.set.DurationVar(&c.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0,
		"timeout of TCP connections after a FIN in mode ipvs; 0: leave unchanged")
	f.set.DurationVar(&c.UDPTimeout.Duration, "ipvs-udp-timeout", 0,
		"timeout of UDP flows in mode ipvs; 0: leave unchanged")
	// kube-proxy does not have these.
	f.set.StringVar(&f.ipvsInterface, "ipvs-interface", "",
		"`name` of the dummy interface with the service addresses, in mode ipvs and for --cleanup (default kpl-ipvs0)")
	f.set.Uint32Var(&f.ipvsMarks, "ipvs-marks", 0,
		"`bits` of packet marks that mode ipvs may use, such as 0x3fff (default 0x7fff00ff without the masquerade bit)")
}

func (f *flags) addConntrack() {
	c := &f.fields.Conntrack
	f.set.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore,
		"`number` of tracked connections per CPU core; 0: leave the kernel's limit unchanged, and "+
			"ignore --conntrack-min")
	f.set.Int32Var(c.Min, "conntrack-min", *c.Min,
		"minimum `number` of tracked connections, however few CPU cores there are")
	f.set.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established",
		c.TCPEstablishedTimeout.Duration, "timeout of idle TCP connections; 0: leave unchanged")
	f.set.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait",
		c.TCPCloseWaitTimeout.Duration, "timeout of TCP connections in CLOSE_WAIT; 0: leave unchanged")
	f.set.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", c.TCPBeLiberal,
		"treat TCP packets outside of the window as valid")
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
		"`name` of the HNS network (default: the environment variable KUBE_NETWORK)")
	f.set.StringVar(&c.SourceVip, "source-vip", "",
		"source `IP` of masqueraded traffic in an overlay network")
	f.set.BoolVar(&c.EnableDSR, "enable-dsr", false, "let endpoints of cluster IPs reply to clients directly (DSR)")
	f.set.StringVar(&c.RootHnsEndpointName, "root-hnsendpoint-name", "cbr0",
		"`name` of the node's own HNS endpoint")
	f.set.BoolVar(&c.ForwardHealthCheckVip, "forward-healthcheck-vip", false,
		"forward health checks of load-balancer IPs to the node itself")
}

// addWithoutEffect adds flags that are accepted only so that kube-proxy's command lines work here.
func (f *flags) addWithoutEffect() {
	c := &f.fields
	f.set.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "no effect")
	f.set.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "no effect")
	f.set.String("boot-id-file", "/proc/sys/kernel/random/boot_id", "no effect")
	f.set.String("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "no effect")
}
