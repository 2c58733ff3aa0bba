package main

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	netutils "k8s.io/utils/net"

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/examples/internal/brain"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// settings are the result of the flags and the configuration file.
type settings struct {
	*v1alpha2.KubeProxyConfiguration
	// gates are the configuration's feature gates, with all defaults.
	gates featuregate.MutableFeatureGate
	// master is the API server's address, which overrides that in the kubeconfig file. It has no field.
	master string
	// server is the brain that the state comes from instead of an API server, if it is set. It has no field either.
	server brain.Flags
	// noHealthz and noMetrics turn these servers off. A configuration file cannot say that; flags can.
	noHealthz, noMetrics bool
	// flags are the values of all flags, for /flagz.
	flags map[string]string
	// notices are about the mode, once it is chosen.
	notices []notice
	// nodePorts says which addresses serve node ports, once the mode is chosen.
	nodePorts nodeaddr.Choice
	// page: package page is served with the metrics. It has no field.
	page bool
}

// besideFile are the flags that are used even if there is a configuration file, like those for logging.
var besideFile = []string{"config", "write-config-to", "cleanup", "init-only", "version", "master", "hostname-override",
	"server", "tls-cert-file", "tls-private-key-file", "ca-file", "insecure", "server-state-file", "page"}

// settings returns the settings, and warnings about them.
func (f *flags) settings() (*settings, []config.Warning, error) {
	s := &settings{master: f.master, server: f.server, page: f.page, flags: flagValues(f.set)}
	if err := s.server.Check(); err != nil {
		return nil, nil, err
	}
	var warnings []config.Warning
	var err error
	if f.configFile != "" {
		s.KubeProxyConfiguration, warnings, err = f.fromFile()
	} else {
		s.noHealthz = f.healthzPort == 0 || f.fields.HealthzBindAddress == ""
		s.noMetrics = f.metricsPort == 0 || f.fields.MetricsBindAddress == ""
		s.KubeProxyConfiguration, warnings, err = f.fromFlags()
	}
	if err != nil {
		return nil, nil, err
	}
	if s.gates, err = config.Gates(s.KubeProxyConfiguration); err != nil {
		return nil, nil, err
	}
	if err := s.checkPage(); err != nil {
		return nil, nil, err
	}
	if f.hostnameOverride != "" {
		name := strings.ToLower(strings.TrimSpace(f.hostnameOverride))
		if name == "" {
			return nil, nil, fmt.Errorf("--hostname-override %q is empty", f.hostnameOverride)
		}
		s.HostnameOverride = name
	}
	return s, append(warnings, s.withoutEffect()...), nil
}

// checkPage checks that the page is served only to this machine, because it shows all services to everyone who can
// reach it.
func (s *settings) checkPage() error {
	address, err := netip.ParseAddrPort(s.MetricsBindAddress)
	if s.page && (s.noMetrics || err != nil || !address.Addr().Unmap().IsLoopback()) {
		return fmt.Errorf("--page: metrics must be served on a loopback address, not on %q",
			s.MetricsBindAddress)
	}
	return nil
}

// fromFile reads the configuration file.
func (f *flags) fromFile() (*v1alpha2.KubeProxyConfiguration, []config.Warning, error) {
	data, err := os.ReadFile(f.configFile)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	c, warnings, err := config.Load(data)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", f.configFile, err)
	}

	var logging pflag.FlagSet
	vmodule := c.Logging.VModule
	c.Logging.VModule = nil
	logsapi.AddFlags(&c.Logging, &logging)
	f.set.Visit(func(flag *pflag.Flag) {
		if l := logging.Lookup(flag.Name); l != nil {
			err = cmp.Or(err, l.Value.Set(flag.Value.String()))
		} else if !slices.Contains(besideFile, flag.Name) {
			warnings = append(warnings,
				config.Warning{Field: "--" + flag.Name, Message: "ignored because a configuration file is given"})
		}
	})
	c.Logging.VModule = append(c.Logging.VModule, vmodule...)
	return c, warnings, err
}

// fromFlags returns the configuration for the flags.
func (f *flags) fromFlags() (*v1alpha2.KubeProxyConfiguration, []config.Warning, error) {
	c := f.fields.DeepCopy()
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, f.healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, f.metricsPort)

	// The flags are shared by all modes; in a file each mode has a section.
	sync, minSync := f.iptablesSyncPeriod, f.iptablesMinPeriod
	if c.Mode == "ipvs" {
		sync, minSync = f.ipvsSyncPeriod, f.ipvsMinPeriod
	}
	for _, d := range []*metav1.Duration{&c.IPTables.SyncPeriod, &c.IPVS.SyncPeriod, &c.NFTables.SyncPeriod} {
		d.Duration = sync
	}
	for _, d := range []*metav1.Duration{&c.IPTables.MinSyncPeriod, &c.IPVS.MinSyncPeriod, &c.NFTables.MinSyncPeriod} {
		d.Duration = minSync
	}
	c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = f.masqueradeAll, f.masqueradeAll

	converted, warnings := config.FromV1alpha1(c)
	// In a file 0 stands for the default, in a flag it means 0.
	converted.SyncPeriod.Duration, converted.MinSyncPeriod = sync, &metav1.Duration{Duration: minSync}
	converted.ConfigSyncPeriod = c.ConfigSyncPeriod
	more, err := config.Check(converted)
	if err != nil {
		return nil, nil, fmt.Errorf("flags: %w", err)
	}
	warnings = append(warnings, more...)
	f.set.Visit(func(flag *pflag.Flag) {
		if reason := f.noEffect(flag.Name, cmp.Or(string(c.Mode), string(modes[0].name))); reason != "" {
			warnings = append(warnings, config.Warning{Field: "--" + flag.Name, Message: reason})
		}
	})
	return converted, warnings, nil
}

// noEffect says why a flag has no effect in a mode, or "".
func (f *flags) noEffect(flag, mode string) string {
	switch {
	case flag == "boot-id-file", flag == "machine-id-file":
		return "accepted, but has no effect: the file is not read"
	case strings.HasPrefix(flag, "ipvs-") && mode != "ipvs":
		return "accepted, but has no effect: it is for mode ipvs"
	case flag == "iptables-localhost-nodeports" && mode != "iptables":
		return "accepted, but has no effect: it is for mode iptables"
	case flag == "iptables-masquerade-bit" && mode != "iptables" && mode != "ipvs":
		return "accepted, but has no effect: it is for modes iptables and ipvs"
	case flag == "healthz-port", flag == "metrics-port":
		return "deprecated: use --" + strings.TrimSuffix(flag, "port") + "bind-address"
	}
	return ""
}

// warnings collects warnings.
type warnings []config.Warning

// addIf adds a warning if it applies.
func (w *warnings) addIf(applies bool, field, message string) {
	if applies {
		*w = append(*w, config.Warning{Field: field, Message: message})
	}
}

// withoutEffect names the settings that have no effect in this program.
func (s *settings) withoutEffect() []config.Warning {
	const accepted = "accepted, but has no effect: "
	var w warnings
	w.addIf(s.ConfigSyncPeriod != v1alpha2.Default().ConfigSyncPeriod, "configSyncPeriod",
		accepted+"changes are applied as they come, without periodic resyncs")
	w.addIf(s.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", accepted+"no metric is hidden")
	w.addIf(s.Windows.RunAsService && runtime.GOOS != "windows", "windows.runAsService",
		accepted+"this is not Windows")
	for _, gate := range slices.Sorted(maps.Keys(s.FeatureGates)) {
		reason := s.gateWithoutEffect(gate)
		w.addIf(reason != "", "featureGates", gate+" is accepted, but has no effect: "+reason)
	}
	const brain = accepted + "the state comes from --server"
	w.addIf(s.server.Given() && s.ClientConnection.Kubeconfig != "", "clientConnection.kubeconfig", brain)
	w.addIf(s.server.Given() && s.master != "", "--master", brain)
	return w
}

// gateWithoutEffect says why a feature gate that is set has no effect in this program, or "".
func (s *settings) gateWithoutEffect(gate string) string {
	on := s.FeatureGates[gate]
	if _, known := s.gates.GetAll()[featuregate.Feature(gate)]; !known {
		return "no such feature gate"
	}
	switch {
	case gate == "NFTablesNetlink" && !on: // a gate of kube-proxy that turns off what is always on here
		return "the feature is always enabled"
	case gate == string(config.KubeProxyNFTablesLocalhostNodePorts) && on:
		return s.noLoopbackProxy()
	}
	return ""
}

// withPort adds a port to an address that has none.
func withPort(address string, port int32) string {
	if netutils.ParseIPSloppy(address) == nil || port == 0 {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// notInAFile names the settings that version v1alpha2 has no field for.
func (s *settings) notInAFile() []config.Warning {
	const (
		served = "disabling it is dropped: a configuration file cannot express that"
		flag   = "is dropped: pass this flag in addition to the configuration file"
	)
	var w warnings
	w.addIf(s.noHealthz, "healthzBindAddress", served)
	w.addIf(s.noMetrics, "metricsBindAddress", served)
	w.addIf(s.master != "", "--master", fmt.Sprintf("%q %s", s.master, flag))
	w.addIf(s.page, "--page", flag)
	w.addIf(s.server.Given(), "--server", flag)
	return w
}

// writeConfig implements --write-config-to.
func (s *settings) writeConfig(path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	defer func() { err = cmp.Or(err, file.Close()) }()
	return config.Write(file, s.KubeProxyConfiguration)
}
