// Package nft is a service proxy for Linux with nftables, for programs that feed it through package sink. [New] returns
// a [Backend]; its Sync applies what was described.
//
// # What it guarantees
//
//   - A wave costs what it changes: a replaced endpoint is one element of a map, whatever the size of the cluster and
//     of its service.
//   - No packet is dispatched to anything that is gone: what is no longer needed is removed in a second transaction,
//     once nothing points at it. Each transaction is applied as a whole or not at all. If the second one is refused,
//     all rules are right; a later Sync removes the leftovers, and the Sync does not fail.
//   - A restart keeps traffic. The first Sync reads the table as an earlier process left it and corrects the
//     differences. Endpoints are the exception: they are written anew, beside the old ones. Clients with session
//     affinity keep their endpoint. A table of another layout is replaced in one transaction.
//   - No service uses up what others need: the endpoints of one with many addresses, ports or endpoints are stored
//     once, and each service port has room of its own for the clients of session affinity.
//   - Changes that others make to its tables are noticed at once, from the kernel's notifications and from the
//     generation of the ruleset, which every transaction depends on. The table is then read, compared and repaired; the
//     same happens after a failure, before the next transaction.
//   - "nft list ruleset" works at every moment, with the nft of Debian 12 (1.0.6) and later, and what it prints loads
//     again.
//
// # What it never does
//
// It touches no table but those of its name (Options.TableName), one in family ip and one in family ip6. It starts no
// program. It does not clean up, except on request ([Backend.CleanUp], [CleanUp]). It does not delete the flows of
// endpoints that have gone: wrap it with package conntrack. It serves no node ports on loopback addresses (S36).
//
// # Kernels
//
// Linux 5.13 or later, with nf_tables and its nat, masq, fib, reject, numgen and ct expressions. New has the kernel
// check a table with all of them, without creating it, and fails with a clear error if something is missing. Rejecting
// in prerouting came with Linux 5.9, comments on tables and chains with 5.10, and upstream kube-proxy asks for 5.13;
// older kernels are not tested. A process without CAP_NET_ADMIN in the first user namespace cannot have big socket
// buffers: there, a transaction that does not fit is divided into several.
//
// # The way of a packet
//
// Only the first packet of a connection passes the nat chains; the others follow connection tracking.
//
//	prerouting (from pods and from outside)        output (from the node itself)
//	        │                                              │
//	        └───────────────────┬──────────────────────────┘
//	                            ▼
//	             1. address . protocol . port in service-ips? ─────────────► go to the chain that it says
//	                            │ no
//	             2. protocol . port in nodeports? ─────────────────────────► go to the chain that it says
//	                            │ no
//	                            ▼
//	                      not ours
//
//	 The chains, each shared by all service ports that are treated alike:
//
//	 reject-traffic, drop-traffic                            no endpoint (S25)
//	 cluster-3                                               one of the 3 in the cluster set
//	 cluster-3-masq                                          ... and masquerade
//	 cluster-3-masq-nonpod                                   ... and masquerade unless a local pod sends (S28)
//	 local-2, local-2-masq, ...                              one of the 2 in the local set
//	 nodeport-cluster-3-masq, ...                            the same for node ports
//	 on-node-nodeport-cluster-3-masq, ...                    if the address is in nodeport-ips (S35), then
//	                                                         nodeport-cluster-3-masq
//	 restricted-cluster-3-masq                               drop unless the source is in vip-sources (S26), then
//	                                                         cluster-3-masq
//	 pod-cluster3-node-cluster3masq-other-local2             traffic policy Local (S27):
//	        │
//	        ├── from a pod of this node ──► cluster-3
//	        ├── from the node itself ─────► cluster-3-masq
//	        └── from anywhere else ───────► local-2
//
//	 cluster-3 ──► dnat to endpoints[ address . protocol . port . random number from 0 to 2 ]
//
//	 A service port that would have more than 1,024 elements there has chains of its own, which all its frontends share:
//
//	 port-... ──► dnat to port-endpoints[ its number . random number from 0 to 49,999 ]
//
//	forward, output (all packets, after everybody's address translation)
//	        └── begins a connection? in a service CIDR (if all cluster IPs are)? ──► cluster-ips-check
//	                                         ├── address in cluster-ips? ──── reject          S33
//	                                         └── address in a service CIDR? ─ drop            S33
//
//	postrouting
//	        └── destination translated? ──► masquerade-traffic
//	                                         ├── mark set on the way (S31)? ─────────────── clear it, masquerade
//	                                         └── source . destination in hairpin (S29)? ─── masquerade
//
// Connections to service addresses that nobody serves are refused where upstream kube-proxy refuses them, after all
// translation: another program may translate some of these addresses, and the node itself may have one.
//
// The map endpoints has a slot for each endpoint of each address of each service; local-endpoints has those of the
// local set, nodeport-endpoints and nodeport-local-endpoints those of node ports, by protocol and port alone. The
// modulus of a random number must be a constant of a rule. That is why there is a chain for each number of endpoints.
// It is made when the first service needs it, and removed by the first full comparison after the last one has gone.
//
// A service port with session affinity (S32) has chains of its own as well, and a set of its clients, by their address
// and a number that stands for an endpoint of the port. (nft has no way to write a number in a key but "numgen random
// mod 1 offset 7", which is always 7.)
//
//	affinity-...-cluster ─┬─ source . 7 in affinity-...? ── note it again, dnat to endpoint 1, whose number is 7
//	                      ├─ source . 9 in affinity-...? ── note it again, dnat to endpoint 2, whose number is 9
//	                      ├─ with a chance of 1 in 2 ────── note source . 7, dnat to endpoint 1
//	                      ├─ else ───────────────────────── note source . 9, dnat to endpoint 2
//	                      └─ if nothing can be noted ────── go to cluster-2: any of them, at random
//
// So affinity holds over all addresses of the port and over restarts, ends in the transaction in which the endpoint
// goes, and costs in proportion to the port's endpoints, per connection and per change. A set has room for 65,535
// clients; further ones are balanced without affinity. Only a client of an endpoint that goes and comes back within the
// timeout may find both the old and the new one to be its own; it then stays with one of them.
//
// # What is known of a table
//
//	              Sync compares              Sync: what is no longer needed
//	┌─────────┐ ─────────────────► ┌───────┐   cannot be removed    ┌───────────┐
//	│ unknown │                    │ known │ ─────────────────────► │ leftovers │
//	└─────────┘ ◄───────────────── └───────┘ ◄───────────────────── └───────────┘
//	     ▲     a transaction fails,  │   ▲      the next Sync can         │
//	     │     ForceResync           │   │                              │
//	     │                somebody   ▼   │ Sync or a repair             │ somebody else
//	     │                else     ┌─────────┐ compares                 │ changes the table
//	     └──────────────────────── │ suspect │ ◄────────────────────────┘
//	                  a Sync fails └─────────┘ ─┐
//	                                     ▲      │ a repair fails, and is tried again
//	                                     └──────┘
//
// In state known a Sync applies what differs from what was last accepted. In state unknown the slots of endpoints are
// not read but written anew: the kernel writes them faster than it lists them. In state suspect everything is read:
// where somebody changes rulesets all the time, the backend would otherwise write slots without end.
//
// # Why two tables
//
// Everything is keyed by addresses, so one table of family inet would save nothing, and each packet would pass the
// rules of both families. With two tables a failure in one family does not touch the other, the kernel validates half
// as much for each change, and a kernel without IPv6 needs no special case.
//
// # Metrics
//
// With Options.Metrics there are kube-proxy's metrics of this mode, by the same names and labels; ip_family is "IPv4"
// or "IPv6".
//
//	kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family}
//	kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family}
//
// The first counts attempts of Syncs and repairs that failed: a transaction of what is wanted was refused, or the table
// could not be read. An attempt for changes alone that fails is followed by a full comparison within the same Sync, so
// that the Sync may succeed all the same. The second counts transactions that were to remove what is no longer needed,
// and failed: new flows do as they should then, and the next comparison tries again. What is done again because
// somebody else has changed rules meanwhile counts only if the Sync gives up on it.
//
// # How it is measured
//
// See docs/nft.md in the repository for the layouts that were compared, the figures, and what to expect of affinity.
package nft
