package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/kubernetes"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	iptablesdataplane "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	nftdataplane "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
)

// machine is what the program finds around it. Tests replace what they must not touch.
type machine struct {
	out       io.Writer // for what a flag asks to be printed
	newClient func(c componentbasev1alpha1.ClientConnectionConfiguration, master string) (kubernetes.Interface, error)
	hostname  func() (string, error)
	logging   func(*logsapi.LoggingConfiguration) error
	listen    func(ctx context.Context, network, address string) (net.Listener, error)

	root     sysctl.Root                   // where proc and sys are
	nftables nftdataplane.Interface        // nil: the kernel's
	iptables []iptablesdataplane.Interface // nil: the programs
	flows    conntrack.Table               // nil: the kernel's
	host     nodeaddr.Host                 // nil: this one
}

// theMachine is the real one.
func theMachine() *machine {
	return &machine{
		out:       os.Stdout,
		newClient: newClient,
		hostname:  os.Hostname,
		logging:   func(c *logsapi.LoggingConfiguration) error { return logsapi.ValidateAndApply(c, nil) },
		listen:    (&net.ListenConfig{}).Listen,
	}
}

// families returns the IP families that the kernel has.
func (m *machine) families() []model.Family {
	families := []model.Family{model.IPv4}
	if _, err := os.Stat(m.path("proc/net/if_inet6")); err != nil {
		return families
	}
	if disabled, err := m.root.Get("net/ipv6/conf/all/disable_ipv6"); err == nil && disabled == "1" {
		return families
	}
	return append(families, model.IPv6)
}

// prepare sets kernel parameters. What cannot be set is logged: in a container /proc is often read-only, and somebody else
// has set what is needed.
func (m *machine) prepare(ctx context.Context, c *v1alpha2.LinuxConfiguration) {
	log := klog.FromContext(ctx)
	limits := sysctl.Conntrack{
		MaxPerCore:            int(*c.Conntrack.MaxPerCore),
		Min:                   int(*c.Conntrack.Min),
		TCPEstablishedTimeout: c.Conntrack.TCPEstablishedTimeout.Duration,
		TCPCloseWaitTimeout:   c.Conntrack.TCPCloseWaitTimeout.Duration,
		UDPTimeout:            c.Conntrack.UDPTimeout.Duration,
		UDPStreamTimeout:      c.Conntrack.UDPStreamTimeout.Duration,
		TCPBeLiberal:          c.Conntrack.TCPBeLiberal,
	}
	if err := limits.Apply(ctx, m.root); err != nil {
		log.Error(err, "Some kernel parameters are not as they were configured")
	}
	if err := os.WriteFile(m.path("proc/self/oom_score_adj"), []byte(strconv.Itoa(int(*c.OOMScoreAdj))), 0); err != nil {
		log.V(2).Info("oom_score_adj is not as it was configured", "err", err)
	}
}

func (m *machine) path(name string) string {
	root := string(m.root)
	if root == "" {
		root = "/"
	}
	return filepath.Join(root, name)
}
