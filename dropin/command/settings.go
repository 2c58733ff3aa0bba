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

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/dropin"
)

// besideFile returns the flags that are used even if there is a configuration file, like those for logging.
func besideFile() []string {
	return []string{"config", "write-config-to", "cleanup", "init-only", "version", "master", "hostname-override",
		"server", "tls-cert-file", "tls-private-key-file", "ca-file", "insecure", "server-state-file",
		"server-state-max-age", "page", "page-bind-address", "count-connections", "ipvs-interface",
		"ipvs-marks", "service-limits", "namespace-limits"}
}

// config returns the configuration, and warnings about it.
func (f *flags) config() (c dropin.Config, warnings []config.Warning, err error) {
	c = dropin.Config{Master: f.master, Page: f.page, PageBindAddress: f.pageAddress, Flags: flagValues(f.set), OwnProcess: true,
		IPVSLink: f.ipvsInterface, IPVSMarks: f.ipvsMarks, Limits: f.limited.Limits, CountConnections: f.countConnections}
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
		brain, err := f.server.Options() // reads certificates, which only the proxy itself needs
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
		if reason := f.noEffect(flag.Name, cmp.Or(string(c.Mode), defaultMode())); reason != "" {
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

// defaultMode is the mode that is used if the flags have none.
func defaultMode() string {
	if runtime.GOOS == "windows" {
		return string(v1alpha2.ProxyModeKernelspace)
	}
	return string(v1alpha2.ProxyModeIPTables)
}

// flagValues returns the value of each flag. No flag of this program is secret: those about keys are paths.
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

// notInAFile names the settings that version v1alpha2 has no field for.
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
		{f.countConnections, "--count-connections", flag},
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
