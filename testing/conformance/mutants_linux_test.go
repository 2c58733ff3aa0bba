package conformance

// mutant is a way in which the simple backend is wrong. "" is right.
type mutant string

const (
	forgetsSourceRanges      mutant = "forgets source ranges"
	masqueradesAlways        mutant = "masquerades always"
	masqueradesNever         mutant = "masquerades never"
	ignoresDetector          mutant = "takes local pods for strangers"
	dropsInsteadOfRejects    mutant = "drops instead of rejecting"
	rejectsInsteadOfDrops    mutant = "rejects instead of dropping"
	acceptsInsteadOfRejects  mutant = "lets pass what it has no endpoints for"
	keepsEndpoints           mutant = "keeps endpoints that have gone"
	neverDeletesServices     mutant = "keeps services that have gone"
	ignoresAffinity          mutant = "ignores session affinity"
	neverForgetsClients      mutant = "ignores the affinity timeout"
	ignoresLocalPolicy       mutant = "ignores local policies"
	takesAnyEndpoint         mutant = "takes endpoints of no set"
	takesReadyOnly           mutant = "takes ready endpoints only"
	onlyFirstEndpointPort    mutant = "takes one target port for all"
	forgetsHairpin           mutant = "forgets hairpins"
	ignoresNodePortAddresses mutant = "ignores node-port addresses"
	servesLocalhost          mutant = "serves node ports on localhost unasked"
	mixesProtocols           mutant = "mixes up protocols"
	forgetsIPv6              mutant = "forgets IPv6"
	forgetsExternalIPs       mutant = "forgets external IPs"
	balancesBadly            mutant = "balances badly"
	forgetsPodShortCircuit   mutant = "treats pods as strangers to external addresses"
	forgetsNodeShortCircuit  mutant = "treats the node as a stranger to external addresses"
	forgetsUnknownPorts      mutant = "does not guard unknown ports"
	forgetsServiceCIDRs      mutant = "does not guard the service CIDRs"
	leavesStaleFlows         mutant = "leaves stale UDP flows"
	leavesATable             mutant = "leaves a table behind"
)
