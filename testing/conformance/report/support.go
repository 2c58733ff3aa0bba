package report

import (
	"fmt"
	"slices"
	"strings"
)

// ServiceFeature is something that Kubernetes requires of service proxies, and that some lack.
type ServiceFeature struct {
	// Name is the feature's name in the API, and KEPs the numbers of its enhancement proposals.
	Name string
	KEPs []int
	// Cases are the names of the cases that prove it.
	Cases []string
}

// Title returns for example "SCTP (KEP-614)".
func (f ServiceFeature) Title() string {
	if len(f.KEPs) == 0 {
		return f.Name
	}
	var keps []string
	for _, number := range f.KEPs {
		keps = append(keps, fmt.Sprintf("KEP-%d", number))
	}
	return f.Name + " (" + strings.Join(keps, ", ") + ")"
}

// Answer says whether a proxy has a feature.
type Answer string

const (
	// Yes: every case passed, perhaps slowly.
	Yes Answer = "yes"
	// No: at least one case failed or is unsupported, and none passed.
	No Answer = "no"
	// InPart: at least one case passed, and at least one failed or is unsupported.
	InPart Answer = "in part"
	// NotKnown: no case failed or is unsupported, but one has no verdict: it was not run, not judged, or is newer than the
	// report.
	NotKnown Answer = "not known"
)

// Support says whether a proxy has a feature, and why.
type Support struct {
	// ServiceFeature is the feature, and Answer whether the proxy has it.
	ServiceFeature
	Answer Answer
	// Right are the cases that passed, Wrong those that failed or are unsupported, and Unknown those without a verdict.
	Right, Wrong, Unknown []string
}

// Support returns what a report says about each of the [ServiceFeatures].
func (r *Report) Support() []Support {
	verdicts := map[string]Verdict{}
	for _, result := range r.Results {
		verdicts[result.Case] = result.Verdict
	}
	var list []Support
	for _, f := range ServiceFeatures() {
		s := Support{ServiceFeature: f}
		for _, name := range f.Cases {
			switch verdicts[name] {
			case Passed, Slow:
				s.Right = append(s.Right, name)
			case Failed, Unsupported:
				s.Wrong = append(s.Wrong, name)
			default:
				s.Unknown = append(s.Unknown, name)
			}
		}
		s.Answer = s.answer()
		list = append(list, s)
	}
	return list
}

func (s Support) answer() Answer {
	switch {
	case len(s.Wrong) > 0 && len(s.Right) > 0:
		return InPart
	case len(s.Wrong) > 0:
		return No
	case len(s.Unknown) > 0 || len(s.Right) == 0:
		return NotKnown
	}
	return Yes
}

// ServiceFeatures returns the features that the suite proves with packets: those of KEP-5922's list that are a service
// proxy's, and older fields of a Service.
func ServiceFeatures() []ServiceFeature {
	external := "external addresses lead to all endpoints, and the source is masqueraded"
	sctp := []string{"ports with one number and different protocols do not mix",
		"an SCTP service without endpoints refuses"}
	return slices.Concat(routingFeatures(), []ServiceFeature{
		{"IPv4 and IPv6 (dual stack)", []int{563}, []string{"a service gets and loses a family",
			"single-stack services leave the other family alone"}},
		{"SCTP", []int{614}, sctp},
		{"TCP and UDP of one Service at a VIP", []int{1435}, []string{external}},
		{"load balancers with ipMode Proxy are left alone", []int{1860}, []string{
			"a load balancer with ipMode Proxy is left to itself"}},
		{"label service-proxy-name: another proxy serves it", []int{2447}, []string{
			"a Service of another service proxy is left to it"}},
		{"externalIPs", nil, []string{external, "external addresses come and go"}},
		{"loadBalancerSourceRanges", nil, []string{"source ranges guard the VIP alone",
			"source ranges that hold pods and the node let them in", "source ranges come, change and go",
			"source ranges and no endpoint: who may is refused"}},
		{"node ports", nil, []string{external, "external addresses come and go"}},
		{"--nodeport-addresses", nil, []string{"node ports are served on all addresses, if no range is given",
			"node-port ranges of one family say nothing about the other one",
			"node ports are served on the node's own address only, if that is what is asked for"}},
		{"node ports on localhost", nil, []string{"node ports are served on 127.0.0.1, and never on ::1"}},
		{"named target ports that differ between pods", nil, []string{
			"a named target port may be another number in each pod"}},
		{"sessionAffinity: ClientIP", nil, []string{"a client stays with its endpoint",
			"session affinity ends with the endpoint", "session affinity spreads the clients over all endpoints",
			"session affinity survives changes to other endpoints"}},
		{"sessionAffinity: timeoutSeconds", nil, []string{"session affinity expires"}},
		{"Services without endpoints refuse", nil, []string{"a service without endpoints refuses on every address",
			"a service whose endpoints are all unready refuses"}},
	})
}

// routingFeatures are those about the choice of endpoints.
func routingFeatures() []ServiceFeature {
	return []ServiceFeature{
		{"internalTrafficPolicy: Local", []int{2086}, []string{
			"internal traffic policy Local keeps to the node, and does not change masquerading",
			"internal traffic policy Local on a service that is internal only",
			"internal traffic policy Local without a local endpoint drops on the cluster IP alone"}},
		{"externalTrafficPolicy: Local", nil, []string{
			"external traffic policy Local keeps to the node and keeps the source",
			"external traffic policy Local without a local endpoint drops what comes from outside",
			"external traffic policy Local without any endpoint anywhere refuses",
			"external traffic policy Local: pods and the node itself reach all endpoints, the node with source NAT"}},
		{"healthCheckNodePort", nil, []string{"the health check of a service knows whether the node has endpoints"}},
		{"hints for zones: topology-mode Auto, trafficDistribution PreferClose and PreferSameZone",
			[]int{2433, 4444, 3015}, []string{"hints for zones keep to the node's zone"}},
		{"hints for nodes: trafficDistribution PreferSameNode", []int{3015}, []string{
			"hints for nodes come before hints for zones"}},
		{"terminating endpoints are the last resort", []int{1669}, []string{
			"terminating endpoints get nothing while others are ready",
			"terminating endpoints that serve get the traffic when there is nothing better",
			"terminating endpoints on other nodes only: the cluster IP reaches them, external local traffic is dropped",
			"the local set falls back to terminating endpoints while the cluster set stays ready",
			"an endpoint that terminates gets nothing new, and gets it back when it is the last"}},
	}
}
