package cases

import (
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// profile is the profile of a case for a program, and the feature that it tests.
type profile struct {
	report.Profile
	Feature string
}

func extended(feature string) profile { return profile{report.Extended, feature} }

// note is the profile of this project's departures from Kubernetes.
func note() profile { return profile{Profile: report.Note} }

// profiles lists the cases outside the core profile, by name.
func profiles() map[string]profile {
	return map[string]profile{
		nodeRefusedCase:            extended("NodeRefusal"),
		freeNumbersCase:            extended("FreeNodePortNumbers"),
		backend.SharedAffinityCase: extended("SharedAffinity"),
		"session affinity expires": extended("SessionAffinityTimeout"),
		unknownPortsCase:           extended("UnusedAddresses"),
		loweredTimeoutCase:         extended("LoweredAffinityTimeout"),
		serviceAddressFlowsCase:    extended("EarlyUDPFlows"),
		nodeAddressFlowsCase:       extended("EarlyUDPFlows"),
		pluginTableCase:            extended("OtherNATTables"),
		pluginRulesCase:            extended("OtherIPTablesRules"),
		leftoversCase:              extended("KubeProxyLeftovers"),
		"addresses of the service CIDRs that no service has are dropped": extended("UnusedAddresses"),
		vipProbeCase: extended("HealthChecksAtVIPs"),
		"UDP flows to a service that has gone are cut":                                          note(),
		"node ports follow the addresses of the host":                                           extended("HostAddresses"),
		"rules that somebody else removed come back":                                            extended("Repair"),
		"rules that somebody else removed while no backend ran come back":                       extended("RepairAtStart"),
		"a pod's host port takes nothing that is for a service":                                 extended("HostPorts"),
		"a pod's host port does not take a node port":                                           extended("HostPorts"),
		"clean-up leaves nothing, and touches nothing of others":                                extended(report.CleanUp),
		"of services that list one address the owner keeps it, and the oldest newcomer is next": note(),
		"an entry that is not ready hides no ready one of the same address before it":           note(),
		"a node port and an external IP of the node's address have one owner":                   note(),
	}
}

// Profile returns the case's profile.
func (c Case) Profile() profile {
	if p, ok := profiles()[c.Name]; ok {
		return p
	}
	switch c.Setup.NodePorts {
	case cluster.OnLoopbackByProxy:
		return note()
	case cluster.OnLocalhostToo, cluster.OnLocalhostAlone:
		return extended(string(backend.LoopbackNodePorts))
	case cluster.OnOtherIPv4Only:
		return extended(string(backend.NodePortAddresses))
	case cluster.OnPrimaryAndOtherIPv4: // new in kube-proxy 1.37; earlier versions allow "primary" only alone
		return extended("PrimaryAndRanges")
	case cluster.OnPrimaryAndLocalhost:
		return extended("PrimaryAndLocalhost")
	}
	switch {
	case c.Setup.MasqueradeAll:
		return extended("MasqueradeAll")
	case c.Setup.Detector == cluster.ByBridge, c.Setup.Detector == cluster.ByInterface:
		return extended("LocalTrafficByInterface")
	}
	for _, f := range c.Needs {
		if f == backend.SCTP {
			return extended(string(backend.SCTP))
		}
	}
	return profile{Profile: report.Core}
}
