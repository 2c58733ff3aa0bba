package cases

import (
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Names that other cases, or the profiles of a report, refer to.
const (
	nodeRefusedCase  = "the node itself is refused at external addresses without endpoints"
	freeNumbersCase  = "where node ports are not served, their numbers are free for the node's own processes"
	unknownPortsCase = "other ports of a cluster IP are refused"

	loweredTimeoutCase      = "clients that do not return are free soon after the affinity timeout is lowered"
	serviceAddressFlowsCase = "UDP flows that began before the service had the address are served"
	nodeAddressFlowsCase    = "UDP flows that began before the node had the address are served"
	pluginTableCase         = "another program's table of nftables takes nothing that is for a service, whoever was first"
	pluginRulesCase         = "another program's rules of iptables take nothing that is for a service, whoever was first"
	leftoversCase           = "what an older kube-proxy left takes nothing, and rules of others that use it stay"
)

// Short names of the test network's places and ports.
const (
	localPod1   = network.LocalPod1
	localPod2   = network.LocalPod2
	localPod3   = network.LocalPod3
	theNode     = network.TheNode
	remotePod1  = network.RemotePod1
	remotePod2  = network.RemotePod2
	remotePod3  = network.RemotePod3
	farPod      = network.FarPod
	otherNode   = network.OtherNode
	thirdNode   = network.ThirdNode
	client      = network.Client
	client2     = network.Client2
	serverPort  = network.ServerPort
	serverPort2 = network.ServerPort2
	serverPort3 = network.ServerPort3
)

// Short names of what clusters consist of, and of the addresses of a service.
type (
	setup       = cluster.Setup
	service     = cluster.Service
	servicePort = cluster.ServicePort
	endpoint    = cluster.Endpoint
	sourceRange = cluster.SourceRange
	destination = cluster.Destination
)

const (
	toClusterIP          = cluster.ToClusterIP
	toExternalIP         = cluster.ToExternalIP
	toVIP                = cluster.ToVIP
	toNodePort           = cluster.ToNodePort
	toOtherNodePort      = cluster.ToOtherNodePort
	toLoopbackNodePort   = cluster.ToLoopbackNodePort
	toUnknownPort        = cluster.ToUnknownPort
	toUnallocatedAddress = cluster.ToUnallocatedAddress
	toEndpointItself     = cluster.ToEndpointItself
)
