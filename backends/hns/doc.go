// Package hns is a service proxy for Windows nodes with the Host Networking Service (HNS, version 2), for programs that
// feed it through package sink. [New] returns a [Backend]; its Sync applies the wanted state.
//
// All decisions are made in Go that runs everywhere, against the interface of package dataplane, and are tested with
// its fake. It has not run on a real Windows machine: the calls to HNS have been tried under Wine, against a DLL that
// stands in for HNS. What HNS does with packets is what its documentation and upstream kube-proxy say.
//
// # What it guarantees
//
//   - The cost of a wave is proportional to what it changes: a replaced endpoint is one read of the network, a call to
//     create the new HNS endpoint, one to update the load balancer of each address of its service, and one to delete
//     the old HNS endpoint. For a new pod of this node the endpoints of the network are listed once, to find the one of
//     its CNI plugin.
//   - Load balancers are changed in place if this version of HNS supports that. Otherwise, and whenever anything other
//     than their endpoints changes, they are deleted and created again, which interrupts their service for a moment.
//   - A restart keeps traffic. The first Sync adopts what an earlier process left, and corrects the difference; if
//     there is none it writes nothing. Load balancers of upstream kube-proxy that have the address and port of a
//     service are taken over.
//   - Changes by others are repaired within a minute, and at every resync; so is a network that was recreated.
//   - A load balancer that HNS refuses fails only its service port: a [sink.PortError]. So does an endpoint that is a
//     cluster IP, or the source VIP: in overlay networks HNS has one endpoint for each address, and that one is needed.
//   - Settings that HNS changes when it creates a load balancer are not repaired. A load balancer that is found in the
//     same wrong state again after three repairs is left so until something about it changes; that is logged.
//   - While HNS restarts and does not answer, it is not mistaken for an empty one. If it says that it is not running,
//     the Sync ends with that error at once, whatever is left to do, and nothing counts as refused (S54).
//
// # What it never does
//
// It touches only load balancers with the address and port of a service, or of one that it served before
// (Options.RecordFile). It deletes only endpoints that it has made, which it names "kube-proxy-lib ...", or an earlier
// kube-proxy, which have hardware addresses 02-11-..., and never one of a local pod. It does not clean up, except on
// request ([Backend.CleanUp], [CleanUp]).
//
// # From services to load balancers
//
// Each of a service's cluster IPs, external IPs, load-balancer IPs and node ports has one HNS load balancer for each
// port. The endpoints of pods of this node are those that their CNI plugin has made; for all others the backend makes
// remote endpoints, and deletes them with their last load balancer. An endpoint whose node is not known, as in an
// EndpointSlice that somebody wrote by hand, may be a local pod: HNS is asked first.
//
//	kind of address   endpoints             HNS flags
//	cluster IP        those of the route    DSR by option
//	node port         those of the route    LocalRoutedVIP, VIPExternalIP; DSR if the policy is Local
//	external IP       those of the route    VIPExternalIP; DSR if the policy is Local
//	load-balancer IP  those of the route    VIPExternalIP; DSR if the policy is Local
//
// In overlay networks remote endpoints carry the address of the node that they are on, from the network's list of
// remote subnets; the service's cluster IP has an endpoint, too; and endpoints see Options.SourceVIP, or the node's
// address if one of them is a node or outside the cluster. With the annotation preserve-destination: "true", packets to
// a load-balancer IP reach local endpoints with that IP as their destination.
//
// Traffic policies, topology and the fallback to terminating endpoints come with the model, as for every backend.
//
// # Metrics
//
// With Options.Metrics the backend exports kube-proxy's metrics of this mode, with the same names and labels:
//
//   - kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total, ..._update_failures_total and
//     ..._delete_failures_total: calls for a load balancer that failed. Something that did not exist when it was
//     deleted, and a change that is made in another way, are no failures.
//
// Of their labels, ip_family is IPv4 or IPv6; lb_type is clusterip, nodeport, externalip, ingressip or healthcheck; and
// error is network_not_found, port_already_exists, not_implemented, invalid_ip or other. A series begins with its first
// failure. The latency of Syncs and of programming comes with kubeproxy.Run, as do health checks.
//
// # What HNS cannot do
//
// If a service asks for something that HNS cannot do, that is logged and reported to Options.OnProblem, once for each
// service:
//
//   - Session affinity is a hash of the client's address, for each load balancer: it has no timeout (S32), and when
//     endpoints are added or removed clients may get another one.
//   - Source ranges (S26): load-balancer IPs are open to all sources.
//   - External traffic policy Local: pods of the node, and the node itself, reach local endpoints alone (S27), because
//     a load balancer does not distinguish sources.
//   - A load balancer has one target port. If endpoints differ in it, as with a named port, those with the most
//     frequent one are used, because the others may not listen on that port. Upstream uses the port that it saw last
//     for all of them.
//   - SCTP is not served. Endpoints in the network of this node itself have no HNS endpoint, and are not used.
//
// For all services, addresses without endpoints have no load balancer, so nothing refuses or drops their packets (S25,
// S33). Whether a source is masqueraded follows from DSR, not from the route (S28, S29). Node ports are served on all
// addresses (S35), but not on 127.0.0.1 (S36).
package hns
