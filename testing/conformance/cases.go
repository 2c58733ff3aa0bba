package conformance

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// The cases are in the files named cases_*. They are in this package, not one of their own, because they call the
// methods of testbed, and Test lists them.

// Names of cases that Factory.Waives may list and that random states and other cases take into account too.
const (
	sharedAffinityCase = "a client stays with its endpoint, at all addresses of the port"
	nodeRefusedCase    = "the node itself is refused at external addresses without endpoints"
	freeNumbersCase    = "where node ports are not served, their numbers are free for the node's own processes"
	unknownPortsCase   = "other ports of a cluster IP are refused"
	externalPortsCase  = "other ports of external addresses are left alone"
	bridgeCase         = "local pods are known by the bridge that they are behind"
	interfaceCase      = "local pods are known by the names of their interfaces"
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

// trafficCases returns the cases that need only states and traffic.
func trafficCases() []trafficCase {
	return slices.Concat(endpointCases(), policyCases(), detectorCases(), addressCases(), changeCases())
}
