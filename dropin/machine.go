package dropin

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"

	"k8s.io/client-go/kubernetes"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	hnsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	iptablesdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	ipvsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nftdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
)

// machine is the environment of a proxy. Tests replace the parts that they must not touch.
type machine struct {
	newClient func(c componentbasev1alpha1.ClientConnectionConfiguration, master string) (kubernetes.Interface, error)
	requests  *prom.Requests // of such a client; nil in tests
	reached   *reached       // by such a client, or at brains
	hostname  func() (string, error)
	listen    func(ctx context.Context, network, address string) (net.Listener, error)

	root     sysctl.Root                   // the parent of proc and sys
	nftables nftdataplane.Interface        // nil: the kernel's
	iptables []iptablesdataplane.Interface // nil: the programs
	ipvs     ipvsdataplane.Interface       // nil: the kernel's
	// upstreamIPVS, if not nil, is the kernel's IPVS with the dummy interface of Kubernetes' own kube-proxy.
	upstreamIPVS ipvsdataplane.Interface
	// ipvsLink is the name of the dummy interface of mode ipvs, "" for the default, and ipvsMarks the bits of its marks.
	ipvsLink  string
	ipvsMarks uint32
	// excludeCIDRs are the address ranges of IPVS virtual servers that belong to other programs, which cleaning up obeys
	// in every mode. excludeErr is why they are not known.
	excludeCIDRs []netip.Prefix
	excludeErr   error
	flows        conntrack.Table // nil: the kernel's
	// hns is nil for this machine's HNS. network is the network to clean up, and hnsRecord the path of the backend's
	// record file if not the default.
	hns                hnsdataplane.Interface
	network, hnsRecord string
	host               nodeaddr.Host
	// local has all addresses at which this process can listen, those of mode ipvs's dummy interface included.
	local nodeaddr.Host
	// setGCPercent sets GOGC, unless the process was started with one.
	setGCPercent func(percent int)
}

// theMachine returns the real machine.
func theMachine() *machine {
	requests, reached := prom.NewRequests(), newReached()
	m := &machine{
		newClient: func(
			c componentbasev1alpha1.ClientConnectionConfiguration, master string,
		) (kubernetes.Interface, error) {
			return newClient(c, master, requests, reached)
		},
		requests: requests,
		reached:  reached,
		hostname: os.Hostname,
		listen:   (&net.ListenConfig{}).Listen,
		host:     &hostaddr.System{ExcludeInterfaces: ipvs.ServiceLinks()},
		local:    &hostaddr.Local{},
		setGCPercent: func(percent int) {
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(percent)
			}
		},
	}
	if runtime.GOOS == "windows" {
		m.flows = noFlows{}
	}
	return m
}

// setIPVS sets the options of mode ipvs that have no field in the configuration file, and those that clean-up needs.
func (m *machine) setIPVS(c *Config) {
	m.ipvsLink, m.ipvsMarks = c.IPVSLink, c.IPVSMarks
	if c.Configuration != nil {
		m.excludeCIDRs, m.excludeErr = config.ExcludeCIDRs(c.Configuration)
	}
	if system, ok := m.host.(*hostaddr.System); ok && m.ipvsLink != "" {
		system.ExcludeInterfaces = append(system.ExcludeInterfaces, m.ipvsLink)
	}
}

// families returns the IP families of the kernel.
func (m *machine) families() []model.Family {
	families := []model.Family{model.IPv4}
	if runtime.GOOS == "windows" {
		return append(families, model.IPv6) // the mode decides
	}
	if _, err := os.Stat(m.path("proc/net/if_inet6")); err != nil {
		return families
	}
	if disabled, err := m.root.Get("net/ipv6/conf/all/disable_ipv6"); err == nil && disabled == "1" {
		return families
	}
	return append(families, model.IPv6)
}

// initOnly implements SetKernelParameters: it sets all kernel parameters in the configuration. If some cannot be set,
// it sets the others and returns the joined errors.
func (m *machine) initOnly(ctx context.Context, c *v1alpha2.KubeProxyConfiguration) error {
	err := m.setConntrack(ctx, c)
	if c.Mode == v1alpha2.ProxyModeIPVS {
		err = errors.Join(err, m.loadIPVS(ctx), ipvs.SetParameters(ctx, m.root, c.IPVS.StrictARP))
	}
	if !servesLocalhost(c) {
		return err
	}
	// Normally the backend sets it, once its rules keep other hosts out. Here there are no rules yet; as with kube-proxy,
	// the kubelet's chain KUBE-FIREWALL keeps them out.
	const name = "net/ipv4/conf/all/route_localnet"
	changed, failed := m.root.SetInt(name, 1)
	if changed && failed == nil {
		klog.FromContext(ctx).Info("Set a kernel parameter, so that node ports can be served on 127.0.0.1",
			"name", name, "value", 1)
	}
	return errors.Join(err, failed)
}

// loadIPVS loads the kernel's IPVS module, without which these parameters do not exist.
func (m *machine) loadIPVS(ctx context.Context) error {
	if m.ipvs != nil {
		return nil
	}
	k, err := ipvsdataplane.NewKernel(ctx, "")
	if err != nil {
		return err
	}
	return k.Close()
}

// setConntrack sets the limits of connection tracking, with errors like initOnly.
func (m *machine) setConntrack(ctx context.Context, c *v1alpha2.KubeProxyConfiguration) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	want := c.Linux.Conntrack
	limits := sysctl.Conntrack{
		MaxPerCore:            int(*want.MaxPerCore),
		Min:                   int(*want.Min),
		TCPEstablishedTimeout: want.TCPEstablishedTimeout.Duration,
		TCPCloseWaitTimeout:   want.TCPCloseWaitTimeout.Duration,
		UDPTimeout:            want.UDPTimeout.Duration,
		UDPStreamTimeout:      want.UDPStreamTimeout.Duration,
		TCPBeLiberal:          want.TCPBeLiberal,
	}
	return limits.Apply(ctx, m.root)
}

// setOOMScore sets the OOM score adjustment of this process.
func (m *machine) setOOMScore(ctx context.Context, score int32) {
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.WriteFile(m.path("proc/self/oom_score_adj"), []byte(strconv.Itoa(int(score))), 0); err != nil {
		klog.FromContext(ctx).V(2).Info("Could not set oom_score_adj", "err", err)
	}
}

func (m *machine) path(name string) string {
	return filepath.Join(cmp.Or(string(m.root), "/"), name)
}
