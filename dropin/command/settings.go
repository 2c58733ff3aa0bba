package command

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	netutils "k8s.io/utils/net"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// besideFile returns the flags that apply even with a configuration file, such as those for logging.
func besideFile() []string {
	return []string{"config", "write-config-to", "cleanup", "init-only", "version", "master", "hostname-override",
		"server", "tls-cert-file", "tls-private-key-file", "ca-file", "insecure", "server-state-file",
		"server-state-max-age", "page", "page-bind-address", "ipvs-interface",
		"ipvs-marks", "service-limits", "namespace-limits"}
}

// config returns the configuration and warnings about it.
func (f *flags) config() (c dropin.Config, warnings []config.Warning, err error) {
	c = dropin.Config{Master: f.master, Page: f.page, PageBindAddress: f.pageAddress, Flags: flagValues(f.set),
		OwnProcess: true, IPVSLink: f.ipvsInterface, IPVSMarks: f.ipvsMarks, Limits: f.limited.Limits,
		EndpointLimits: f.limited.EndpointLimits}
	if err := f.server.Check(); err != nil {
		return c, nil, err
	}
	if f.configFile != "" {
		c.Configuration, warnings, err = f.fromFile()
	} else {
		c.NoHealthz = f.healthzPort == 0 || f.fields.HealthzBindAddress == ""
		c.NoMetrics = f.metricsPort == 0 || f.fields.MetricsBindAddress == ""
		c.Configuration, warnings, err = f.fromFlags()
	}
	if err != nil {
		return c, nil, err
	}
	if f.hostnameOverride != "" {
		name := strings.ToLower(strings.TrimSpace(f.hostnameOverride))
		if name == "" {
			return c, nil, fmt.Errorf("--hostname-override %q is empty", f.hostnameOverride)
		}
		c.Configuration.HostnameOverride = name
	}
	if f.server.Given() && f.writeConfigTo == "" && !f.cleanup && !f.initOnly {
		brain, err := f.server.Options() // reads certificates, which only the proxy needs
		if err != nil {
			return c, nil, err
		}
		c.Brain = &brain
	}
	more, err := c.Check()
	return c, append(warnings, more...), err
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
		} else if !slices.Contains(besideFile(), flag.Name) {
			warnings = append(warnings,
				config.Warning{Field: "--" + flag.Name, Message: "ignored because a configuration file is given"})
		}
	})
	c.Logging.VModule = append(c.Logging.VModule, vmodule...)
	return c, warnings, err
}

// fromFlags returns the configuration from the flags.
func (f *flags) fromFlags() (*v1alpha2.KubeProxyConfiguration, []config.Warning, error) {
	c := f.fields.DeepCopy()
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, f.healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, f.metricsPort)

	// The modes share the flags; in a file each mode has a section.
	sync, minSync, minFlag := f.iptablesSyncPeriod, f.iptablesMinPeriod, "iptables-min-sync-period"
	if c.Mode == "ipvs" {
		sync, minSync, minFlag = f.ipvsSyncPeriod, f.ipvsMinPeriod, "ipvs-min-sync-period"
	}
	for _, d := range []*metav1.Duration{&c.IPTables.SyncPeriod, &c.IPVS.SyncPeriod, &c.NFTables.SyncPeriod} {
		d.Duration = sync
	}
	c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = f.masqueradeAll, f.masqueradeAll

	converted, warnings := config.FromV1alpha1(c)
	// 0 means the default in a file, but 0 in a flag.
	converted.SyncPeriod.Duration = sync
	if f.set.Changed(minFlag) {
		converted.MinSyncPeriod = &metav1.Duration{Duration: minSync}
	}
	converted.ConfigSyncPeriod = c.ConfigSyncPeriod
	more, err := config.Check(converted)
	if err != nil {
		return nil, nil, fmt.Errorf("flags: %w", err)
	}
	warnings = append(warnings, more...)
	f.set.Visit(func(flag *pflag.Flag) {
		if reason := f.noEffect(flag.Name, cmp.Or(string(c.Mode), defaultMode())); reason != "" {
			warnings = append(warnings, config.Warning{Field: "--" + flag.Name, Message: reason})
		}
	})
	return converted, warnings, nil
}

// noEffect returns the reason why a flag has no effect in a mode, or "".
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

// defaultMode returns the mode that is used without --proxy-mode.
func defaultMode() string {
	if runtime.GOOS == "windows" {
		return string(v1alpha2.ProxyModeKernelspace)
	}
	return string(v1alpha2.ProxyModeIPTables)
}

// flagValues returns the value of each flag. None is secret: flags for keys contain paths.
func flagValues(set *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	set.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// withPort adds a port to an address that has none.
func withPort(address string, port int32) string {
	if netutils.ParseIPSloppy(address) == nil || port == 0 {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// notInAFile returns warnings for settings that version v1alpha2 has no field for.
func (f *flags) notInAFile(c dropin.Config) []config.Warning {
	const (
		served = "disabling it is dropped: a configuration file cannot express that"
		flag   = "is dropped: pass this flag in addition to the configuration file"
	)
	var w []config.Warning
	for _, setting := range []struct {
		dropped        bool
		field, message string
	}{
		{c.NoHealthz, "healthzBindAddress", served},
		{c.NoMetrics, "metricsBindAddress", served},
		{f.master != "", "--master", fmt.Sprintf("%q %s", f.master, flag)},
		{f.page, "--page", flag},
		{f.pageAddress != "", "--page-bind-address", flag},
		{f.ipvsInterface != "", "--ipvs-interface", flag},
		{f.ipvsMarks != 0, "--ipvs-marks", flag},
		{f.set.Changed("service-limits"), "--service-limits", flag},
		{f.set.Changed("namespace-limits"), "--namespace-limits", flag},
		{f.server.Given(), "--server", flag},
	} {
		if setting.dropped {
			w = append(w, config.Warning{Field: setting.field, Message: setting.message})
		}
	}
	return w
}
