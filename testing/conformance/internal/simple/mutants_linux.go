package simple

// Mutant is a fault of the simple backend. "" is none.
type Mutant string

const (
	ForgetsSourceRanges        Mutant = "forgets source ranges"
	mixesRangeFamilies         Mutant = "lets the source ranges of one family shut out the other"
	masqueradesAlways          Mutant = "masquerades always"
	masqueradesNever           Mutant = "masquerades never"
	sparesPodsAlways           Mutant = "never masquerades local pods"
	ignoresDetector            Mutant = "takes local pods for strangers"
	dropsInsteadOfRejects      Mutant = "drops instead of rejecting"
	RejectsInsteadOfDrops      Mutant = "rejects instead of dropping"
	acceptsInsteadOfRejects    Mutant = "lets pass what it has no endpoints for"
	KeepsEndpoints             Mutant = "keeps endpoints that have gone"
	neverDeletesServices       Mutant = "keeps services that have gone"
	IgnoresAffinity            Mutant = "ignores session affinity"
	affinityPerAddress         Mutant = "has an affinity of its own for each address"
	neverForgetsClients        Mutant = "ignores the affinity timeout"
	keepsFirstTimeout          Mutant = "keeps the first affinity timeout"
	ignoresLocalPolicy         Mutant = "ignores local policies"
	takesAnyEndpoint           Mutant = "takes endpoints of no set"
	takesReadyOnly             Mutant = "takes ready endpoints only"
	takesOneTargetPort         Mutant = "takes one target port for all"
	takesFirstPortOnly         Mutant = "serves the first port of a service only"
	ForgetsHairpin             Mutant = "forgets hairpins"
	forgetsNodePorts           Mutant = "forgets node ports"
	ignoresNodePortAddresses   Mutant = "ignores node-port addresses"
	closesNodePorts            Mutant = "refuses node ports on addresses where they are not served"
	servesLocalhost            Mutant = "serves node ports on localhost unasked"
	mixesProtocols             Mutant = "mixes up protocols"
	forgetsSCTP                Mutant = "forgets SCTP"
	forgetsIPv6                Mutant = "forgets IPv6"
	forgetsExternalIPs         Mutant = "forgets external IPs"
	forgetsVIPs                Mutant = "forgets load-balancer VIPs"
	balancesBadly              Mutant = "balances badly"
	forgetsPodShortCircuit     Mutant = "treats pods as strangers to external addresses"
	forgetsNodeShortCircuit    Mutant = "treats the node as a stranger to external addresses"
	forgetsUnknownPorts        Mutant = "does not guard unknown ports"
	forgetsServiceCIDRs        Mutant = "does not guard the service CIDRs"
	refusesExternalPorts       Mutant = "refuses other ports of external addresses"
	refusesEstablished         Mutant = "refuses packets of connections that stand"
	leavesStaleFlows           Mutant = "leaves stale UDP flows"
	cutsAllFlows               Mutant = "cuts all UDP flows"
	looksAtEndpointsAlone      Mutant = "looks for stale UDP flows when endpoints change, and only then"
	leavesFlowsToNewAddresses  Mutant = "leaves stale UDP flows to addresses that the host got later"
	sinksWhatItRefuses         Mutant = "leads what source ranges refuse to where nothing is"
	cutsConnections            Mutant = "cuts all connections"
	AppliesAtOnce              Mutant = "does not wait for Sync"
	ForgetsFailures            Mutant = "takes a failed Sync for done"
	trustsItsMemory            Mutant = "trusts what it remembers of the dataplane"
	FlushesOnStart             Mutant = "removes everything when it starts"
	keepsWhatItFinds           Mutant = "keeps the rules of an earlier run"
	ReloadsWithAGap            Mutant = "removes the old rules before it adds the new ones"
	LeavesATable               Mutant = "leaves a table behind"
	cleansUpTooMuch            Mutant = "removes the tables of others"
	cutsTransfers              Mutant = "cuts connections after 64 KiB"
	losesHalfClose             Mutant = "ends the whole connection with one half"
	swallowsResets             Mutant = "swallows resets"
	cutsDatagrams              Mutant = "has room for 512 bytes in a datagram"
	losesFragments             Mutant = "loses datagrams that came in fragments"
	swallowsPathErrors         Mutant = "swallows errors of the path"
	swallowsRefusals           Mutant = "swallows the refusals of endpoints"
	breaksHighPorts            Mutant = "breaks direct connections to pods from high ports"
	masqueradesStrangers       Mutant = "masquerades what is for no service"
	stopsTrafficWhileItApplies Mutant = "stops all traffic while it applies a change"
	letsTheNodeAnswer          Mutant = "lets processes of the node answer on cluster IPs"
	ownsServiceAddresses       Mutant = "gives the node the cluster IPs, and leaves them to the rules of others"
	ordersByAge                Mutant = "comes before or after the rules of others, by age"
	comesAfterOthers           Mutant = "comes after the rules of others"
	flushesOthers              Mutant = "flushes the rules of others when it starts"
	youngestOwns               Mutant = "gives contested addresses to the youngest service"
	firstNameOwns              Mutant = "gives contested addresses by name"
	putsNodePortsLast          Mutant = "gives addresses of the node to external IPs before node ports"
	forgetsIdleConnections     Mutant = "forgets idle connections"
	ignoresHostAddresses       Mutant = "ignores new addresses of the host"
	keepsHostAddresses         Mutant = "keeps addresses that the host has lost"

	// Limited is not a mutant: it only lacks what a backend may lack.
	Limited Mutant = "does only what every backend does"
)

// reachAll is the name of a case.
const reachAll = "external traffic policy Local: pods and the node itself reach all endpoints, the node with source NAT"

// Names of other cases.
const (
	loweredTimeout  = "clients that do not return are free soon after the affinity timeout is lowered"
	newServiceFlows = "UDP flows that began before the service had the address are served"
	newNodeFlows    = "UDP flows that began before the node had the address are served"
	othersTable     = "another program's table of nftables takes nothing that is for a service, whoever was first"
	othersIPTables  = "another program's rules of iptables take nothing that is for a service, whoever was first"
	oldKubeProxy    = "what an older kube-proxy left takes nothing, and rules of others that use it stay"
)

// MustCatch names the cases that have to catch each mutant, and what their messages have to contain.
var MustCatch = map[Mutant]map[string]string{
	ForgetsSourceRanges: {"source ranges guard the VIP alone": "S26",
		"source ranges come, change and go": "S26", "a VIP is an allowed source if the ranges name it": "S26"},
	mixesRangeFamilies: {"source ranges of one family leave the other one open": "seen: drop"},
	masqueradesAlways: {"external traffic policy Local keeps to the node and keeps the source": "S27",
		"a cluster IP leads to all endpoints, of this node and others": "S28"},
	masqueradesNever: {"external addresses lead to all endpoints, and the source is masqueraded": "source NAT",
		"a cluster IP leads to all endpoints, of this node and others": "source NAT"},
	sparesPodsAlways: {"masquerade-all masquerades pods to cluster IPs, and nothing else": "source NAT"},
	ignoresDetector: {"local pods are known by the node's CIDR": "S30",
		"local pods are known by the cluster's CIDR":              "S30",
		"local pods are known by the bridge that they are behind": "S30",
		"local pods are known by the names of their interfaces":   "S30"},
	dropsInsteadOfRejects: {"a service without endpoints refuses on every address": "seen: drop",
		"an SCTP service without endpoints refuses": "seen: drop"},
	RejectsInsteadOfDrops: {
		"external traffic policy Local without a local endpoint drops what comes from outside": "seen: reject",
		"internal traffic policy Local without a local endpoint drops on the cluster IP alone": "seen: reject"},
	acceptsInsteadOfRejects: {"a service without endpoints refuses on every address": "left the node unchanged"},
	KeepsEndpoints: {"endpoints come and go": "seen: delivered",
		"session affinity ends with the endpoint":                           "seen: delivered",
		"the first endpoint ends the refusal, the last one's end begins it": "seen: delivered"},
	neverDeletesServices: {"a service that has gone is served no more": "seen: reject",
		"addresses move between services in one wave": "seen: "},
	IgnoresAffinity:     {"a client stays with its endpoint, at all addresses of the port": "S32"},
	affinityPerAddress:  {"a client stays with its endpoint, at all addresses of the port": "S32"},
	neverForgetsClients: {"session affinity expires": "before the timeout"},
	keepsFirstTimeout:   {loweredTimeout: "before the timeout was lowered"},
	ignoresLocalPolicy: {"external traffic policy Local keeps to the node and keeps the source": "S27",
		"internal traffic policy Local keeps to the node, and does not change masquerading": "S28"},
	takesAnyEndpoint: {"the cluster set respects topology, the local set does not": "seen: delivered",
		"terminating endpoints get nothing while others are ready": "seen: delivered"},
	takesReadyOnly:     {"terminating endpoints that serve get the traffic when there is nothing better": "seen: reject"},
	takesOneTargetPort: {"a named target port may be another number in each pod": "seen: none of"},
	takesFirstPortOnly: {"each port of a service has endpoints of its own": ":81/TCP"},
	ForgetsHairpin:     {"a pod that reaches itself through a service is masqueraded": "S29"},
	forgetsNodePorts:   {"external addresses lead to all endpoints, and the source is masqueraded": "node port"},
	ignoresNodePortAddresses: {"node ports are served on the node's own address only, if that is what is asked for": "S35",
		"node-port ranges of one family say nothing about the other one":                                  "S35",
		"the node's primary address and ranges add up, and other families have the primary address alone": "S35",
		"localhost alone is no other address of either family":                                            "S35"},
	closesNodePorts: {
		"where node ports are not served, their numbers are free for the node's own processes": "seen: reject"},
	servesLocalhost: {"node ports are not served on 127.0.0.1 unless it is asked for": "S36"},
	mixesProtocols: {"ports with one number and different protocols do not mix": "seen:",
		"a port of one protocol says nothing about the others": "seen:"},
	forgetsSCTP:             {"ports with one number and different protocols do not mix": "SCTP"},
	forgetsIPv6:             {"a cluster IP leads to all endpoints, of this node and others": "fd00:"},
	forgetsExternalIPs:      {"external addresses lead to all endpoints, and the source is masqueraded": "external IP"},
	forgetsVIPs:             {"external addresses lead to all endpoints, and the source is masqueraded": "VIP"},
	balancesBadly:           {"new connections are spread evenly over the endpoints": "chi-squared"},
	forgetsPodShortCircuit:  {reachAll: "local pod"},
	forgetsNodeShortCircuit: {reachAll: "flow: node"},
	forgetsUnknownPorts:     {"other ports of a cluster IP are refused": "S33"},
	refusesExternalPorts: {"other ports of external addresses are left alone": "seen: reject",
		"a health check at a VIP is not refused, where the node has the VIP": "seen: reject"},
	forgetsServiceCIDRs: {"addresses of the service CIDRs that no service has are dropped": "S33"},
	refusesEstablished: {
		"connections that stand stay with an endpoint that takes no new ones": "connection that stands"},
	leavesStaleFlows: {"UDP flows move when their endpoint goes": "sent before",
		"UDP flows move when their endpoint changes its port": "sent before",
		"UDP flows that began before the service are served":  "sent before",
		"UDP flows to a service that has gone are cut":        "sent before"},
	looksAtEndpointsAlone:     {newServiceFlows: "now that this is served", newNodeFlows: "now that this is served"},
	leavesFlowsToNewAddresses: {newNodeFlows: "now that this is served"},
	sinksWhatItRefuses: {
		"UDP flows that source ranges dropped are served when these let them in": "now that this is served"},
	cutsAllFlows: {"UDP flows to endpoints that serve are left alone": "still serves"},
	cutsConnections: {"connections that stand survive changes to other endpoints": "connection that stands",
		"connections that stand stay with an endpoint that takes no new ones": "connection that stands"},
	AppliesAtOnce: {"what is described takes effect at Sync, not before": "before Sync"},
	ForgetsFailures: {"a Sync that fails loses nothing": "after a Sync that failed",
		"a Sync that is cancelled loses nothing": "after a Sync that failed"},
	trustsItsMemory:  {"rules that somebody else removed come back": "seen:"},
	FlushesOnStart:   {"no new connection is lost while the backend restarts": "while the backend restarted"},
	keepsWhatItFinds: {"a restart keeps traffic, and corrects what has changed meanwhile": "after a restart"},
	ReloadsWithAGap:  {"no new connection is lost while endpoints come and go": "at every moment"},
	cutsTransfers:    {"megabytes get through in both directions, whichever side ends first": "bytes each way"},
	losesHalfClose:   {"megabytes get through in both directions, whichever side ends first": "the client ends its half"},
	swallowsResets:   {"a reset in the middle of a transfer reaches the other side": "resets the connection halfway"},
	cutsDatagrams:    {"datagrams get through up to the MTU, and beyond it in fragments": "seen: 513 bytes"},
	losesFragments:   {"datagrams get through up to the MTU, and beyond it in fragments": "seen: 1473 bytes"},
	swallowsPathErrors: {"a narrow way behind a service holds up no connection": "at the",
		"the error of a narrow way behind a service reaches the sender": "1350 bytes"},
	swallowsRefusals: {"an endpoint's own refusal reaches the sender": "the endpoint's own ICMP error"},
	breaksHighPorts: {
		"traffic that is for no service is left alone, before, during and after changes": "for no service"},
	masqueradesStrangers: {
		"traffic that is for no service is left alone, before, during and after changes": "for no service"},
	stopsTrafficWhileItApplies: {
		"traffic that is for no service is left alone, before, during and after changes": "while services came"},
	letsTheNodeAnswer: {
		"processes of the node that listen on all addresses get nothing that is for a service": "delivered to 0.0.0.0:10250"},
	ownsServiceAddresses: {"a pod's host port takes nothing that is for a service": "came after the backend's"},
	ordersByAge: {
		othersTable:    "came after the backend's",
		othersIPTables: "came after the backend's"},
	comesAfterOthers: {
		othersTable:  "came after the backend's",
		oldKubeProxy: "before the backend"},
	flushesOthers: {oldKubeProxy: "do not work any more"},
	youngestOwns: {
		"of services that list one address the owner keeps it, and the oldest newcomer is next": "the owner goes"},
	putsNodePortsLast: {
		"a node port and an external IP of the node's address have one owner": "lists the address and the number"},
	firstNameOwns: {
		"of services that list one address the owner keeps it, and the oldest newcomer is next": "wants it too"},
	// On a machine that stalls for a second they are forgotten before all of them are established.
	forgetsIdleConnections: {"connections on which nothing is said for long are still there": "want: an answer"},
	ignoresHostAddresses:   {"node ports follow the addresses of the host": "after the node got the address"},
	keepsHostAddresses:     {"node ports follow the addresses of the host": "after the node lost the address"},
	LeavesATable:           {"clean-up leaves nothing, and touches nothing of others": "left: "},
	cleansUpTooMuch:        {"clean-up leaves nothing, and touches nothing of others": "gone: "},
}
