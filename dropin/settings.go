package dropin

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// Config says what Run does. The zero value is valid: kube-proxy's defaults, in the cluster of the pod that the process
// runs in. No function of this package changes a Config. Do not change what it points at while Run runs.
type Config struct {
	// Configuration is kube-proxy's configuration: from [config.Load], or written in code. Fields that are not set have
	// the defaults of version v1alpha2. Nil: all have. Logging and windows.runAsService have no effect, because they
	// are about the whole process: package command applies them.
	Configuration *v1alpha2.KubeProxyConfiguration

	// Client is the client for the API server. Nil: one is made from section clientConnection and Master; without
	// both, that of the pod's service account.
	Client kubernetes.Interface
	// Master is the address of the API server, instead of that in the kubeconfig file.
	Master string
	// Brain is where the state of the node comes from instead of an API server, which is not used then: package
	// remote. State is set by Run. Nil: the API server.
	Brain *remote.Options

	// NoHealthz and NoMetrics turn off the servers on healthzBindAddress and metricsBindAddress.
	NoHealthz, NoMetrics bool
	// Page serves package page at /page/ on PageBindAddress, IP:port, or with the metrics if that is empty. Either has
	// to be a loopback address, because the page shows all services to everyone who can reach it.
	Page            bool
	PageBindAddress string
	// CountConnections is the option of that name of package backends/nft, for mode nftables: the page then shows how many
	// connections each service gets. In mode ipvs it always does.
	CountConnections bool
	// IPVSLink and IPVSMarks are the options Link and Marks of package backends/ipvs, for mode ipvs; CleanUp uses
	// IPVSLink. The addresses of that interface are not the node's, in no mode: an earlier process may have left them
	// there.
	IPVSLink  string
	IPVSMarks uint32
	// Limits bound what a Service and a namespace may cost, in all modes.
	Limits frontend.Limits
	// Flags are what /flagz with the metrics shows: values by the names of flags. Nothing else uses them.
	Flags map[string]string

	// OwnProcess says that nothing else runs in this process, so that Run may change what the process has once: it
	// sets linux.oomScoreAdj, and with enableProfiling the metrics server lets PUT /debug/flags/v set klog's verbosity.
	OwnProcess bool

	machine *machine // nil: the real one
}

// settings is a configuration that is complete.
type settings struct {
	Config
	// KubeProxyConfiguration is a copy of Configuration, with all defaults.
	*v1alpha2.KubeProxyConfiguration
	// gates are the configuration's feature gates, with all defaults.
	gates featuregate.MutableFeatureGate
	// notices are about the mode, once it is chosen.
	notices []notice
	// nodePorts says which addresses serve node ports, once the mode is chosen.
	nodePorts nodeaddr.Choice
}

// Check returns an error if the configuration is invalid on any machine, and warnings about settings that have no
// effect. The values of fields are checked by [config.Check]. Run does both, and does not report the warnings.
func (c *Config) Check() ([]config.Warning, error) {
	s, err := c.settings()
	if err != nil {
		return nil, err
	}
	return s.withoutEffect(), nil
}

// settings returns a copy of the configuration with all defaults.
func (c *Config) settings() (*settings, error) {
	s := &settings{Config: *c, KubeProxyConfiguration: &v1alpha2.KubeProxyConfiguration{}}
	if s.machine == nil {
		s.machine = theMachine()
	}
	s.machine.setIPVS(c)
	if c.Configuration != nil {
		s.KubeProxyConfiguration = c.Configuration.DeepCopy()
	}
	v1alpha2.SetDefaults(s.KubeProxyConfiguration)
	var err error
	if s.gates, err = config.Gates(s.KubeProxyConfiguration); err != nil {
		return nil, err
	}
	return s, errors.Join(s.checkPage(), s.Limits.Validate())
}

// checkPage checks that the page is served only to this machine, because it shows all services to everyone who can
// reach it.
func (s *settings) checkPage() error {
	if !s.Page {
		if s.PageBindAddress != "" {
			return errors.New("--page-bind-address: there is no page without --page")
		}
		return nil
	}
	if s.PageBindAddress != "" {
		if !onLoopback(s.PageBindAddress) {
			return fmt.Errorf("--page-bind-address: %q is not a loopback address with a port, such as 127.0.0.1:10250",
				s.PageBindAddress)
		}
		return nil
	}
	if s.NoMetrics {
		return errors.New("--page: there are no metrics to serve the page with: give it an address with " +
			"--page-bind-address=127.0.0.1:10250")
	}
	if !onLoopback(s.MetricsBindAddress) {
		return fmt.Errorf("--page: the metrics, with which the page is served, are not on a loopback address but on %q: give "+
			"the page its own with --page-bind-address=127.0.0.1:10250", s.MetricsBindAddress)
	}
	return nil
}

// onLoopback reports whether only this machine reaches an address with a port.
func onLoopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Unmap().IsLoopback()
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
	w.addIf(s.Brain != nil && s.ClientConnection.Kubeconfig != "", "clientConnection.kubeconfig", brain)
	w.addIf(s.Brain != nil && s.Master != "", "--master", brain)
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
