package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

const (
	// GroupName is the API group of kube-proxy's configuration.
	GroupName = "kubeproxy.config.k8s.io"
	// APIVersion is the value of apiVersion in a file of this version.
	APIVersion = GroupName + "/v1alpha2"
	// Kind is the value of kind in a file.
	Kind = "KubeProxyConfiguration"
)

// KubeProxyConfiguration is everything that configures a service proxy on a node. Durations are written like "5s", "1m"
// or "2h22m".
type KubeProxyConfiguration struct {
	// TypeMeta has apiVersion and kind, which a file must have: see APIVersion and Kind.
	metav1.TypeMeta `json:",inline"`

	// FeatureGates turns features on or off by name. The program determines which names there are. Default: none.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`

	// ClientConnection says how to talk to the API server: kubeconfig, the path to a kubeconfig file (default "", the
	// service account of the pod); acceptContentTypes, the Accept header (default "", what contentType says);
	// contentType (default "application/vnd.kubernetes.protobuf"); qps, requests a second (default 5); burst, requests
	// that may exceed qps for a moment (default 10).
	ClientConnection componentbasev1alpha1.ClientConnectionConfiguration `json:"clientConnection"`
	// Logging is how to log. Defaults: format "text", flushFrequency "5s", verbosity 0.
	Logging logsapi.LoggingConfiguration `json:"logging"`

	// HostnameOverride is the name of this node's Node object. Default "": the host's name.
	HostnameOverride string `json:"hostnameOverride,omitempty"`
	// NodeIPOverride are the node's primary IPs, one of each IP family at most, instead of those in the Node object.
	// The first one decides which family is the primary one (S49); for a family without one the Node object's is taken.
	// Default: none.
	NodeIPOverride []string `json:"nodeIPOverride,omitempty"`
	// IPFamilyPolicy says which IP families the node has to have. Default "", which means the same as PreferDualStack.
	IPFamilyPolicy IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`

	// HealthzBindAddress is the IP and port where /healthz and /livez are served. Without a port, 10256. Default
	// "0.0.0.0:10256", or "[::]:10256" if the first nodeIPOverride is IPv6.
	HealthzBindAddress string `json:"healthzBindAddress"`
	// MetricsBindAddress is the IP and port where metrics are served. Without a port, 10249. Default "127.0.0.1:10249",
	// or "[::1]:10249" if the first nodeIPOverride is IPv6.
	MetricsBindAddress string `json:"metricsBindAddress"`
	// BindAddressHardFail ends the program if one of these two addresses cannot be bound; if it is false, the program
	// continues without. Default true (in v1alpha1 false).
	BindAddressHardFail *bool `json:"bindAddressHardFail"`
	// EnableProfiling serves /debug/pprof with the metrics. Default false.
	EnableProfiling bool `json:"enableProfiling"`
	// ShowHiddenMetricsForVersion is a version of Kubernetes, such as "1.36", whose hidden metrics are to be shown.
	// Default "".
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion,omitempty"`
	// ConfigHardFail ends the start if something in the configuration is wrong; if it is false, there is a warning, and
	// the default is used instead. Default true.
	ConfigHardFail *bool `json:"configHardFail"`

	// Mode selects the backend. Default "": the program's choice.
	Mode ProxyMode `json:"mode,omitempty"`
	// IPTables is for mode iptables.
	IPTables IPTablesConfiguration `json:"iptables"`
	// IPVS is for mode ipvs.
	IPVS IPVSConfiguration `json:"ipvs"`
	// NFTables is for mode nftables.
	NFTables NFTablesConfiguration `json:"nftables"`
	// Winkernel is for mode kernelspace.
	Winkernel WinkernelConfiguration `json:"winkernel"`

	// Linux is for all modes on Linux.
	Linux LinuxConfiguration `json:"linux"`
	// Windows is for all modes on Windows.
	Windows WindowsConfiguration `json:"windows"`

	// DetectLocalMode is how to detect traffic from a pod of this node (S30). Default "", which means the same as
	// ClusterCIDR.
	DetectLocalMode LocalMode `json:"detectLocalMode,omitempty"`
	// DetectLocal is what DetectLocalMode needs.
	DetectLocal DetectLocalConfiguration `json:"detectLocal"`

	// NodePortAddresses are CIDRs and keywords, in any order: node ports are served on the host's addresses that any of
	// them covers (S35). The keywords are primary, for the node's own IPs; localhost, for 127.0.0.0/8 and ::1/128; and
	// all. A keyword may occur once, and applies to both families. A family that the list does not cover at all serves
	// node ports on all its addresses, for example IPv6 with 127.0.0.0/8 alone. Default: none, which means primary in mode
	// nftables and all in the others.
	//
	// Of loopback addresses mode iptables serves 127.0.0.0/8, with IPTables.LocalhostNodePorts (S36), and a program may
	// have mode nftables serve 127.0.0.1 and ::1 (S36a). The other modes serve none.
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"`

	// SyncPeriod is the longest time between a failed attempt to write rules and the next one. A proxy whose rules have
	// been pending for twice as long counts as unhealthy (S39a). In modes ipvs and kernelspace it is also how often all
	// rules are rewritten; in the others that is once an hour. More than 0. Default "30s".
	SyncPeriod metav1.Duration `json:"syncPeriod"`
	// MinSyncPeriod is the shortest time between two writes of rules; changes in between are written together. 0 means
	// that every change is written at once. Not more than SyncPeriod. By default, nil, it follows from what the last
	// write has cost: nine times that, at least 5 ms and at most 1 s (S43).
	MinSyncPeriod *metav1.Duration `json:"minSyncPeriod,omitempty"`
	// ConfigSyncPeriod is how often all known API objects are processed again. More than 0. Default "15m".
	ConfigSyncPeriod metav1.Duration `json:"configSyncPeriod"`
}

// LinuxConfiguration is what all modes on Linux have in common.
type LinuxConfiguration struct {
	// Conntrack sets the kernel's connection tracking.
	Conntrack ConntrackConfiguration `json:"conntrack"`
	// MasqueradeAll gives all traffic to cluster IPs the node's address as its source (S28). Some network plugins need
	// that. Default false.
	MasqueradeAll bool `json:"masqueradeAll"`
	// OOMScoreAdj is the oom_score_adj of the process, from -1000 to 1000: the lower, the later it is killed when
	// memory runs out. Default -999.
	OOMScoreAdj *int32 `json:"oomScoreAdj"`
}

// WindowsConfiguration is what all modes on Windows have in common.
type WindowsConfiguration struct {
	// RunAsService makes the program talk to the service control manager. Default false.
	RunAsService bool `json:"runAsService"`
}

// IPTablesConfiguration is for mode iptables.
type IPTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, from 0 to 31, that says that a packet is to be masqueraded (S31).
	// Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// LocalhostNodePorts serves node ports on 127.0.0.1, too, in IPv4 (S36). Default false (in v1alpha1 true).
	LocalhostNodePorts *bool `json:"localhostNodePorts"`
}

// IPVSConfiguration is for mode ipvs.
type IPVSConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, from 0 to 31, that says that a packet is to be masqueraded (S31).
	// Default 14. (In v1alpha1 mode ipvs took that of section iptables.)
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// Scheduler is the kernel's name of the scheduler, such as "rr" or "lc". Default "", which means rr.
	Scheduler string `json:"scheduler,omitempty"`
	// ExcludeCIDRs hold the addresses of virtual servers that are not this program's, and that it leaves alone.
	// Default: none.
	ExcludeCIDRs []string `json:"excludeCIDRs,omitempty"`
	// StrictARP sets arp_ignore and arp_announce so that the node does not answer ARP requests for service IPs on its
	// other interfaces. Default false.
	StrictARP bool `json:"strictARP"`
	// TCPTimeout is how long an idle TCP connection is kept. Default 0: the kernel's value stays.
	TCPTimeout metav1.Duration `json:"tcpTimeout"`
	// TCPFinTimeout is how long a TCP connection is kept after a FIN. Default 0: the kernel's value stays.
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	// UDPTimeout is how long an idle UDP flow is kept. Default 0: the kernel's value stays.
	UDPTimeout metav1.Duration `json:"udpTimeout"`
}

// NFTablesConfiguration is for mode nftables.
type NFTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, from 0 to 31, that says that a packet is to be masqueraded (S31).
	// Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
}

// WinkernelConfiguration is for mode kernelspace.
type WinkernelConfiguration struct {
	// NetworkName is the name of the HNS network. Default "": that of the environment variable KUBE_NETWORK (S51).
	NetworkName string `json:"networkName,omitempty"`
	// SourceVip is the IP that masqueraded traffic has as its source in an overlay network (S52). Default "".
	SourceVip string `json:"sourceVip,omitempty"`
	// EnableDSR creates load balancers with direct server return (S53). Default false.
	EnableDSR bool `json:"enableDSR"`
	// RootHnsEndpointName is the name of the HNS endpoint of the host's own network namespace. Default "", which means
	// cbr0.
	RootHnsEndpointName string `json:"rootHnsEndpointName,omitempty"`
	// ForwardHealthCheckVip forwards service IPs to the health-check port (S55). Default false.
	ForwardHealthCheckVip bool `json:"forwardHealthCheckVip"`
}

// ConntrackConfiguration sets the kernel's connection tracking (S42).
type ConntrackConfiguration struct {
	// MaxPerCore is the minimum, for each CPU core, of the kernel's limit of tracked connections; a higher limit stays. 0
	// leaves the limit alone, and Min has no effect then. Default 32768.
	MaxPerCore *int32 `json:"maxPerCore"`
	// Min is the minimum of that limit however few cores there are. Default 131072.
	Min *int32 `json:"min"`
	// TCPEstablishedTimeout is how long an idle TCP connection is kept. 0 leaves it alone. Default "24h".
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	// TCPCloseWaitTimeout is how long a TCP connection in CLOSE_WAIT is kept. 0 leaves it alone. Default "1h".
	TCPCloseWaitTimeout *metav1.Duration `json:"tcpCloseWaitTimeout"`
	// TCPBeLiberal treats TCP packets outside of the window as valid. Default false, which is the kernel's default.
	TCPBeLiberal bool `json:"tcpBeLiberal"`
	// UDPTimeout is how long an idle UDP flow that had no answer is kept. Default 0: the kernel's value stays.
	UDPTimeout metav1.Duration `json:"udpTimeout"`
	// UDPStreamTimeout is how long an idle UDP flow that had answers is kept. Default 0: the kernel's value stays.
	UDPStreamTimeout metav1.Duration `json:"udpStreamTimeout"`
}

// DetectLocalConfiguration is what DetectLocalMode needs.
type DetectLocalConfiguration struct {
	// BridgeInterface is the name of the bridge that the node's pods are behind, for mode BridgeInterface.
	BridgeInterface string `json:"bridgeInterface,omitempty"`
	// ClusterCIDRs hold the addresses of the cluster's pods, for mode ClusterCIDR: one CIDR, or one of each IP family.
	// A family without one has no detection of local traffic.
	ClusterCIDRs []string `json:"clusterCIDRs,omitempty"`
	// InterfaceNamePrefix is the prefix of the names of the pods' interfaces on the host, for mode InterfaceNamePrefix.
	InterfaceNamePrefix string `json:"interfaceNamePrefix,omitempty"`
}

// ProxyMode names a backend.
type ProxyMode string

const (
	ProxyModeIPTables    ProxyMode = "iptables"    // Linux
	ProxyModeIPVS        ProxyMode = "ipvs"        // Linux
	ProxyModeNFTables    ProxyMode = "nftables"    // Linux
	ProxyModeKernelspace ProxyMode = "kernelspace" // Windows
)

// LocalMode is a way to detect traffic from a pod of this node (S30).
type LocalMode string

const (
	// LocalModeClusterCIDR: its source is in detectLocal.clusterCIDRs.
	LocalModeClusterCIDR LocalMode = "ClusterCIDR"
	// LocalModeNodeCIDR: its source is in the podCIDRs of the Node object.
	LocalModeNodeCIDR LocalMode = "NodeCIDR"
	// LocalModeBridgeInterface: it arrives through detectLocal.bridgeInterface.
	LocalModeBridgeInterface LocalMode = "BridgeInterface"
	// LocalModeInterfaceNamePrefix: it arrives through an interface whose name starts with
	// detectLocal.interfaceNamePrefix.
	LocalModeInterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// IPFamilyPolicy says which IP families the node has to have.
type IPFamilyPolicy string

const (
	// IPFamilyPolicySingleStack serves the primary family only.
	IPFamilyPolicySingleStack IPFamilyPolicy = "SingleStack"
	// IPFamilyPolicyPreferDualStack serves both families where the kernel has both.
	IPFamilyPolicyPreferDualStack IPFamilyPolicy = "PreferDualStack"
	// IPFamilyPolicyRequireDualStack serves both families; it is an error if the kernel has one only, or if the node
	// has no IP of one.
	IPFamilyPolicyRequireDualStack IPFamilyPolicy = "RequireDualStack"
)

// The keywords of nodePortAddresses.
const (
	// NodePortAddressesPrimary stands for the node's own IPs.
	NodePortAddressesPrimary = "primary"
	// NodePortAddressesLocalhost stands for 127.0.0.0/8 and ::1/128.
	NodePortAddressesLocalhost = "localhost"
	// NodePortAddressesAll stands for 0.0.0.0/0 and ::/0.
	NodePortAddressesAll = "all"
)
