package dropin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// mode is a choice for --proxy-mode. A new mode is a new element of modes().
type mode struct {
	name v1alpha2.ProxyMode
	// usable returns the reason why the mode cannot serve a family of the kernel, or nil. Default: it can.
	usable func(ctx context.Context, f model.Family, m *machine) error
	// start returns the backend. It changes nothing before the first Sync.
	start func(ctx context.Context, c *v1alpha2.KubeProxyConfiguration, m *machine, o backendOptions) (backend, error)
	// cleanUp removes everything that this program has ever applied in the mode.
	cleanUp func(ctx context.Context, m *machine) error
	// cleanUpUpstream removes what Kubernetes' own kube-proxy has applied in the mode.
	cleanUpUpstream func(ctx context.Context, m *machine) error
	// findUpstream names tables and chains that only Kubernetes' own kube-proxy creates. Default: none, or the same as
	// those of another mode.
	findUpstream func(ctx context.Context, m *machine) ([]string, error)
	// readsMetadata: the backend reads labels or annotations of services.
	readsMetadata bool
}

// backendOptions are options of all backends that are not in the configuration.
type backendOptions struct {
	frontend.Common
	loopback bool // a proxy in this process serves node ports on loopback addresses (S36a)
	// otherNodes returns the addresses of the cluster's other nodes, and those that the program has reached.
	otherNodes func() (*otherNodes, error)
	apiServers []netip.Addr // API servers or brains, as configured
}

// common returns the common options of backends, for a configuration and a machine.
func (o *backendOptions) common(c *v1alpha2.KubeProxyConfiguration, m *machine) frontend.Common {
	common := o.Common
	common.Host, common.Sysctls, common.MasqueradeMark = m.host, m.root, config.MasqueradeMark(c)
	return common
}

// backend is a sink that can be closed.
type backend interface {
	sink.Sink
	// Close releases the backend's resources. The applied rules stay.
	Close() error
}

// notice is a remark about the mode for operators, both in the log and as an Event on the Node.
type notice struct{ reason, note string }

// noMode is the notice for a configuration without a mode.
func noMode() notice {
	return notice{"KubeProxyDefaultMode", "No proxy mode is configured: using iptables. With Kubernetes 1.40 the " +
		"default becomes nftables, which is faster. To stay with iptables, configure it: mode: iptables in the " +
		"configuration file, or --proxy-mode=iptables."}
}

// modeIPVS is the notice for mode ipvs.
func modeIPVS() notice {
	return notice{"IPVSDeprecation", "Mode ipvs is deprecated in Kubernetes: kube-proxy will turn it off by default " +
		"in 1.40 and remove it in 1.43. This program keeps it, but mode nftables is faster."}
}

// chooseMode returns the configuration's mode. If it has none, chooseMode selects one and sets it there.
func (s *settings) chooseMode(ctx context.Context) (*mode, error) {
	c, modes := s.KubeProxyConfiguration, modes()
	if c.Mode == "" {
		c.Mode = modes[0].name
		if c.Mode == v1alpha2.ProxyModeIPTables {
			s.notices = append(s.notices, noMode())
		}
	}
	if c.Mode == v1alpha2.ProxyModeIPVS {
		s.notices = append(s.notices, modeIPVS())
	}
	for _, n := range s.notices {
		klog.FromContext(ctx).Info(n.note)
	}
	var names []string
	for i := range modes {
		if modes[i].name == c.Mode {
			// The mode determines which fields must be valid.
			_, err := config.Check(c)
			if err == nil {
				s.nodePorts, err = config.NodePortAddresses(c)
			}
			return &modes[i], err
		}
		names = append(names, string(modes[i].name))
	}
	return nil, fmt.Errorf("unsupported proxy mode %q; this system supports: %s", c.Mode, strings.Join(names, ", "))
}

// families returns the IP families that the mode can serve on this machine, and an error for the kernel's other
// families.
func (current *mode) families(ctx context.Context, m *machine) (families []model.Family, missing error) {
	for _, f := range m.families() {
		var err error
		if current.usable != nil {
			err = current.usable(ctx, f, m)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "This mode cannot serve an IP family that the kernel supports",
				"mode", current.name, "family", f)
			missing = errors.Join(missing, err)
			continue
		}
		families = append(families, f)
	}
	return families, missing
}

// cleanUpAll implements --cleanup (S50). Chains to which others jump are logged, and not an error.
func cleanUpAll(ctx context.Context, m *machine) error {
	var errs []error
	for _, mode := range modes() {
		if err := mode.cleanUp(ctx, m); err != nil {
			errs = append(errs, fmt.Errorf("clean up mode %s: %w", mode.name, err))
		}
	}
	err := errors.Join(errs...)
	if err != nil && onlyInUse(err) {
		logInUse(ctx, err)
		return nil
	}
	return err
}

// cleanUpOthers removes the rules of other modes and of Kubernetes' own kube-proxy (S50). It continues after errors and
// joins them.
func (current *mode) cleanUpOthers(ctx context.Context, m *machine) error {
	var errs []error
	for _, mode := range modes() {
		if mode.name != current.name {
			if err := mode.cleanUp(ctx, m); err != nil {
				errs = append(errs, fmt.Errorf("rules of mode %s may be left: %w", mode.name, err))
			}
		}
		if err := mode.cleanUpUpstream(ctx, m); err != nil {
			errs = append(errs, fmt.Errorf("rules of Kubernetes' own kube-proxy in mode %s may be left: %w", mode.name,
				err))
		}
	}
	return errors.Join(errs...)
}

// findUpstream names the rules of Kubernetes' own kube-proxy on this machine. It skips modes whose rules it cannot
// read: cleanUpOthers returns an error for those.
func (m *machine) findUpstream(ctx context.Context) (found []string) {
	for _, mode := range modes() {
		if mode.findUpstream == nil {
			continue
		}
		names, err := mode.findUpstream(ctx, m)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot look for rules of Kubernetes' own kube-proxy", "mode", mode.name,
				"reason", err)
		}
		found = append(found, names...)
	}
	return found
}

// anotherKubeProxy reports that Kubernetes' own kube-proxy has recreated its rules.
func (p *proxy) anotherKubeProxy(ctx context.Context, found string) {
	klog.FromContext(ctx).Error(nil,
		"Rules of Kubernetes' own kube-proxy have come back: it runs on this node, too. Run only one of the two",
		"found", found)
	p.events.warning(notice{"AnotherKubeProxy", "Rules of Kubernetes' own kube-proxy were removed and have come back (" +
		found + "): it runs on this node, too. Run only one of the two."})
}
