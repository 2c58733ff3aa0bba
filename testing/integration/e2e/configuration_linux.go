package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeConfiguration writes the configuration files of containerd, kubelet and the network plugins.
func (n *node) writeConfiguration() error {
	for name, text := range map[string]string{
		"containerd.toml":       n.containerdConfig(),
		"kubelet.yaml":          n.kubeletConfig(),
		"resolv.conf":           "",
		"cni/10-nodes.conflist": n.networkConfig(),
	} {
		if err := os.MkdirAll(filepath.Dir(n.file(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(n.file(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) containerdConfig() string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.nri.v1.nri",
]

[grpc]
address = %[4]q

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %[1]q

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE nothing may have a lower score than its parent.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%[2]q]
conf_dir = %[3]q

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
`, pauseImage, n.m.o.Programs, n.file("cni"), containerdSocket)
}

func (n *node) kubeletConfig() string {
	// The API server has no client certificate for kubelet, which only processes in the machine's namespaces can reach.
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: true}
  webhook: {enabled: false}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
clusterDNS: [%s]
clusterDomain: %s
containerRuntimeEndpoint: unix://%s
# Where the machine has cgroups of version 1.
failCgroupV1: false
failSwapOn: false
# The machine's disk is not the cluster's.
evictionHard: {nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%}
imageGCHighThresholdPercent: 100
oomScoreAdj: 0
resolvConf: %s
%s`, dnsIPv4, clusterDomain, containerdSocket, n.file("resolv.conf"), featureGates(n.m.o.FeatureGates))
}

// featureGates formats gates for a configuration file.
func featureGates(gates string) string {
	if gates == "" {
		return ""
	}
	return "featureGates: {" + strings.ReplaceAll(strings.ReplaceAll(gates, "=", ": "), ",", ", ") + "}\n"
}

func (n *node) networkConfig() string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "nodes",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "mtu": 1500,
     "ipam": {"type": "host-local", "dataDir": "/run/cni",
              "ranges": [[{"subnet": %q}], [{"subnet": %q}]],
              "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, n.PodCIDRs[0], n.PodCIDRs[1])
}
