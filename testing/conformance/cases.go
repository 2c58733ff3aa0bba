package conformance

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// The cases are in the files named cases_*. They are in this package because they drive its session, which calls the
// Factory: in a package of their own they would need both, and Test would need them.

// Cases that are also about more than their own traffic: what a backend waives with one of them is not asked of it
// elsewhere either.
const (
	sharedAffinityCase = "a client stays with its endpoint, at all addresses of the port"
	nodeRefusedCase    = "the node itself is refused at external addresses without endpoints"
	freeNumbersCase    = "where node ports are not served, their numbers are free for the node's own processes"
	unknownPortsCase   = "other ports of a cluster IP are refused"
	externalPortsCase  = "other ports of external addresses are left alone"
	bridgeCase         = "local pods are known by the bridge that they are behind"
	interfaceCase      = "local pods are known by the names of their interfaces"
)

// The places of the test network and the ports of its servers, by the short names that the cases have for them.
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

// trafficCases are all cases that consist of states and traffic.
func trafficCases() []trafficCase {
	return slices.Concat(endpointCases(), policyCases(), detectorCases(), addressCases(), changeCases())
}
