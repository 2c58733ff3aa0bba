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

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/remote"
)

// Config configures Run. The zero value is valid: kube-proxy's defaults, in the cluster of the pod in which the process
// runs. No function of this package changes a Config. Do not change what it points to while Run runs.
type Config struct {
	// Configuration is kube-proxy's configuration: from [config.Load], or written in code. Unset fields have the defaults
	// of version v1alpha2; nil means all defaults. Logging and windows.runAsService have no effect, because they concern
	// the whole process: package command applies them.
	Configuration *v1alpha2.KubeProxyConfiguration

	// Client is the client for the API server. If it is nil, Run creates one from clientConnection and Master or, without
	// both, from the pod's service account.
	Client kubernetes.Interface
	// Master is the API server's address, instead of that in the kubeconfig file.
	Master string
	// Brain is the source of the node's state instead of an API server, see package remote. Run sets its State. Nil means
	// the API server.
	Brain *remote.Options

	// NoHealthz and NoMetrics turn off the servers on healthzBindAddress and metricsBindAddress.
	NoHealthz, NoMetrics bool
	// Page serves package page at /page/ on PageBindAddress (IP:port) or, if that is empty, with the metrics. The address
	// has to be a loopback address, because the page shows all services to everyone who can reach it.
	Page            bool
	PageBindAddress string
	// IPVSLink and IPVSMarks are the options Link and Marks of package backends/ipvs, for mode ipvs; CleanUp uses
	// IPVSLink. In all modes, addresses of that interface do not count as the node's: an earlier process may have left
	// them.
	IPVSLink  string
	IPVSMarks uint32
	// Limits limit the cost of a Service and of a namespace, in all modes.
	Limits frontend.Limits
	// EndpointLimits bound the endpoints of a Service and of a namespace. With a brain, the brain's limits apply instead.
	EndpointLimits localstate.EndpointLimits
	// Flags are the flag values that /flagz shows. Nothing else uses them.
	Flags map[string]string

	// OnReady, if given, is called once, when everything has been applied for the first time, except single service ports
	// that the kernel refuses. It must not block.
	OnReady func()
	// Syncer, if given, asks for a Sync and waits for it, for programs that have to know when something is applied, or go
	// on even if the first Sync failed. It waits until Run has started to apply something: if Run fails before that, only
	// its own context ends it.
	Syncer *kubeproxy.Syncer

	// OwnProcess says that the process runs nothing else, so that Run may change process-wide settings: it sets
	// linux.oomScoreAdj and, unless the environment variable GOGC is set, GOGC to 50, to 25 during the first Sync. With
	// enableProfiling, PUT /debug/flags/v of the metrics server sets klog's verbosity.
	OwnProcess bool

	machine *machine // nil: the real one
}

// settings is a complete configuration.
type settings struct {
	Config
	// KubeProxyConfiguration is a copy of Configuration, with all defaults.
	*v1alpha2.KubeProxyConfiguration
	// gates are the configuration's feature gates, with all defaults.
	gates featuregate.MutableFeatureGate
	// notices are remarks about the mode, once it is chosen.
	notices []notice
	// nodePorts selects the addresses that serve node ports, once the mode is chosen.
	nodePorts nodeaddr.Choice
}

// Check returns an error if the configuration is invalid on every machine, and warnings about settings without effect.
// [config.Check] checks the values of fields. Run does both, and does not report the warnings.
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
	return s, errors.Join(s.checkPage(), s.Limits.Validate(), s.EndpointLimits.Validate())
}

// checkPage checks that only this machine can reach the page, because it shows all services.
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
		return fmt.Errorf("--page: the metrics, with which the page is served, are not on a loopback address but on "+
			"%q: give the page its own with --page-bind-address=127.0.0.1:10250", s.MetricsBindAddress)
	}
	return nil
}

// onLoopback reports whether an address with a port is reachable only from this machine.
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

// withoutEffect returns warnings for settings that have no effect in this program.
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

// gateWithoutEffect returns the reason why a feature gate that is set has no effect in this program, or "".
func (s *settings) gateWithoutEffect(gate string) string {
	on := s.FeatureGates[gate]
	if _, known := s.gates.GetAll()[featuregate.Feature(gate)]; !known {
		return "no such feature gate"
	}
	switch {
	case gate == "NFTablesNetlink" && !on: // it disables what cannot be disabled here
		return "the feature is always enabled"
	case gate == string(config.KubeProxyNFTablesLocalhostNodePorts) && on:
		return s.noLoopbackProxy()
	}
	return ""
}
