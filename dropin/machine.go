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
	"strconv"

	"k8s.io/client-go/kubernetes"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	hnsdataplane "sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"
	iptablesdataplane "sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	ipvsdataplane "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	nftdataplane "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
)

// machine is the environment of a proxy, which has its own. Tests replace the parts that they must not touch.
type machine struct {
	newClient func(c componentbasev1alpha1.ClientConnectionConfiguration, master string) (kubernetes.Interface, error)
	hostname  func() (string, error)
	listen    func(ctx context.Context, network, address string) (net.Listener, error)

	root     sysctl.Root                   // where proc and sys are
	nftables nftdataplane.Interface        // nil: the kernel's
	iptables []iptablesdataplane.Interface // nil: the programs
	ipvs     ipvsdataplane.Interface       // nil: the kernel's
	// ipvsLink is the name of the dummy interface of mode ipvs, "" for the default, and ipvsMarks the bits of its marks.
	ipvsLink  string
	ipvsMarks uint32
	// excludeCIDRs are the addresses whose IPVS virtual servers belong to others.
	excludeCIDRs []netip.Prefix
	flows        conntrack.Table // nil: the kernel's
	// hns is nil for this machine's HNS. network is the name of the network that a clean-up is for, and hnsRecord the
	// path of the backend's record if it is not the default.
	hns                hnsdataplane.Interface
	network, hnsRecord string
	host               nodeaddr.Host
}

// theMachine is the real one.
func theMachine() *machine {
	m := &machine{
		newClient: newClient,
		hostname:  os.Hostname,
		listen:    (&net.ListenConfig{}).Listen,
		host:      &nodeaddr.System{ExcludeInterfaces: ipvs.ServiceLinks()},
	}
	if runtime.GOOS == "windows" {
		m.flows = noFlows{}
	}
	return m
}

// setIPVS sets what no field of the configuration file says of mode ipvs.
func (m *machine) setIPVS(c *Config) {
	m.ipvsLink, m.ipvsMarks = c.IPVSLink, c.IPVSMarks
	if system, ok := m.host.(*nodeaddr.System); ok && m.ipvsLink != "" {
		system.ExcludeInterfaces = append(system.ExcludeInterfaces, m.ipvsLink)
	}
}

// families returns the IP families that the kernel has.
func (m *machine) families() []model.Family {
	families := []model.Family{model.IPv4}
	if runtime.GOOS == "windows" {
		return append(families, model.IPv6) // the mode knows more
	}
	if _, err := os.Stat(m.path("proc/net/if_inet6")); err != nil {
		return families
	}
	if disabled, err := m.root.Get("net/ipv6/conf/all/disable_ipv6"); err == nil && disabled == "1" {
		return families
	}
	return append(families, model.IPv6)
}

// initOnly implements SetKernelParameters: it sets all kernel parameters in the configuration. The error joins one for
// each that could not be set; the others are set.
func (m *machine) initOnly(ctx context.Context, c *v1alpha2.KubeProxyConfiguration) error {
	err := m.setConntrack(ctx, c)
	if c.Mode == v1alpha2.ProxyModeIPVS {
		err = errors.Join(err, m.loadIPVS(ctx), ipvs.SetParameters(ctx, m.root, c.IPVS.StrictARP))
	}
	if !servesLocalhost(c) {
		return err
	}
	// Normally the backend does this, once there are rules that keep others out. Here there are none yet; the kubelet's
	// chain KUBE-FIREWALL does that, as with kube-proxy.
	const name = "net/ipv4/conf/all/route_localnet"
	changed, failed := m.root.SetInt(name, 1)
	if changed && failed == nil {
		klog.FromContext(ctx).Info("Set a kernel parameter, so that node ports can be served on 127.0.0.1",
			"name", name, "value", 1)
	}
	return errors.Join(err, failed)
}

// loadIPVS makes the kernel load IPVS, without which these parameters do not exist.
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
