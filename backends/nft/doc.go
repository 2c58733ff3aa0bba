// Package nft is a service proxy for Linux with nftables, for programs that feed it through package sink. [New] returns
// a [Backend]; its Sync applies the wanted state.
//
// # What it guarantees
//
//   - The cost of a wave is proportional to what it changes: a replaced endpoint is one element of a map, whatever the
//     size of the cluster and of its service.
//   - No packet is dispatched to anything that is gone: obsolete objects are removed in a second transaction, once
//     nothing points at them. Each transaction is applied as a whole or not at all. If the second one is refused, all
//     rules are right; a later Sync removes the leftovers, and the Sync does not fail.
//   - A restart keeps traffic. The first Sync reads the table as an earlier process left it and corrects the
//     differences. Endpoints are the exception: they are written into new maps, next to the old ones. Clients with
//     session affinity keep their endpoint. A table of another layout is replaced in one transaction.
//   - No service exhausts what others need: the endpoints of one with many addresses, ports or endpoints are stored
//     once, as is a list of source ranges. The clients with session affinity of a namespace are in sets of its own,
//     unless more than 512 namespaces have such ports.
//   - Changes that other programs make to its tables are noticed at once, from the kernel's notifications and from the
//     generation of the ruleset, which every transaction names. The table is then read, compared and repaired; the same
//     happens after a failure, before the next transaction.
//   - A transaction that the kernel refuses fails its family as a whole, and Sync returns the error. The backend does
//     not search for a service port that caused it, as that of iptables does: New has tested what the kernel may lack.
//   - "nft list ruleset" works at every moment, with the nft of Debian 12 (1.0.6) and later, and what it prints loads
//     again. It takes longer while rules change (docs/nft.md).
//
// # What it never does
//
// It touches only the tables of its name (Options.TableName), one in family ip and one in family ip6. It starts no
// program. It does not clean up, except on request ([Backend.CleanUp], [CleanUp]). It does not delete the flows of
// removed endpoints: wrap it with package conntrack. It serves no node ports on loopback addresses (S36), and leaves
// packets to these alone: run userspace.NewLoopback next to it for that (S36a).
//
// # Kernels
//
// Linux 5.10 or later, with nf_tables and its nat, masq, fib, reject, numgen and ct expressions. New has the kernel
// check a table with all of them, without creating it, and fails with an error that names the first rule that is not
// supported. Linux 5.9 added reject in prerouting and 5.10 comments on tables and chains; upstream kube-proxy requires
// 5.13. Older kernels are not tested. A process without CAP_NET_ADMIN in the first user namespace cannot have big
// socket buffers: there, a transaction that does not fit is split.
//
// # The path of a packet
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
//	 restricted-LIST-cluster-3-masq                          unless sources-LIST drops the packet (S26),
//	                                                         cluster-3-masq
//	 sources-LIST                                            return if the source is in one of the list's ranges, else
//	                                                         drop; LIST is a hash of the ranges
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
//	forward, output (all packets, after all address translation)
//	        └── begins a connection? in a service CIDR (if all cluster IPs are)? ──► cluster-ips-check
//	                                         ├── address in cluster-ips? ──── reject          S33
//	                                         └── address in a service CIDR? ─ drop            S33
//
//	postrouting
//	        └── destination translated? ──► masquerade-traffic
//	                                         ├── mark set on the way (S31)? ─────────────── clear it, masquerade
//	                                         └── source . destination in hairpin (S29)? ─── masquerade
//
// Connections to service addresses without a service are refused where upstream kube-proxy refuses them, after all
// translation: another program may translate some of these addresses, and the node itself may have one.
//
// The map endpoints has a slot for each endpoint of each address of each service; local-endpoints has those of the
// local set, nodeport-endpoints and nodeport-local-endpoints those of node ports, by protocol and port alone. The
// modulus of a random number must be a constant of a rule. That is why there is a chain for each number of endpoints.
// It is made when the first service needs it, and removed by the first full comparison after the last one is gone; of
// those for pairs of numbers, as with traffic policy Local, all unused ones are removed when there are more than 1,024.
//
// A service port with session affinity (S32) also has its own chains, and a set of its clients, keyed by their address
// and a number that stands for an endpoint of the port. (nft can write a number in a key only as "numgen random mod 1
// offset 7", which is always 7.) In a namespace with more than 16 such ports the others share one set, clients-...,
// with one more number in the key, which stands for the port.
//
//	affinity-...-cluster ─┬─ source . 7 in affinity-...? ── note it again, dnat to endpoint 1, whose number is 7
//	                      ├─ source . 9 in affinity-...? ── note it again, dnat to endpoint 2, whose number is 9
//	                      ├─ with a chance of 1 in 2 ────── note source . 7, dnat to endpoint 1
//	                      ├─ else ───────────────────────── note source . 9, dnat to endpoint 2
//	                      └─ if nothing can be noted ────── go to cluster-2: any of them, at random
//
// Of more than 256 endpoints up to 128 each are a group, whose rules are in two chains of their own:
//
//	affinity-...-cluster ─┬─ jump to ...-known-0 (the first kind of rule above, for group 0)
//	                      ├─ jump to ...-known-1
//	                      ├─ jump to ...-known-2
//	                      ├─ with a chance of 128 in 300 ── jump to ...-new-0 (the second kind, for group 0)
//	                      ├─ with a chance of 128 in 172 ── jump to ...-new-1
//	                      ├─ else ───────────────────────── jump to ...-new-2
//	                      └─ if nothing can be noted ────── go to cluster-300
//
// So affinity holds across all addresses of the port and across restarts, and ends in the transaction that removes the
// endpoint. Its cost per connection is proportional to the port's endpoints, and its cost per change to those of a
// group; a port with one endpoint only notes its clients. A set has room for 65,535 clients; further ones are balanced
// without affinity. If an endpoint is removed and comes back within the timeout, a client may have entries for both it
// and another endpoint; it then stays with one of them.
//
// Rules give an entry its timeout when the client opens a connection. So when a timeout is lowered, the backend reads
// the set and gives the new timeout to the clients of this port that would stay for longer. A client that goes on
// connecting keeps its endpoint; all others lose theirs at most that long after the change. A set is read only for
// that, and after a restart if the rules of the port have changed. A Sync reads no further set after 16,384 clients;
// the backend reads the others in the background, in a tenth of the time at most.
//
// # What is known about a table
//
//	              Sync compares              Sync: what is no longer needed
//	┌─────────┐ ─────────────────► ┌───────┐   cannot be removed    ┌───────────┐
//	│ unknown │                    │ known │ ─────────────────────► │ leftovers │
//	└─────────┘ ◄───────────────── └───────┘ ◄───────────────────── └───────────┘
//	     ▲     a transaction fails,  │   ▲      the next Sync can         │
//	     │     ForceResync           │   │                              │
//	     │                 another   ▼   │ Sync or a repair             │ another program
//	     │                 program ┌─────────┐ compares                 │ changes the table
//	     └──────────────────────── │ suspect │ ◄────────────────────────┘
//	                  a Sync fails └─────────┘ ─┐
//	                                     ▲      │ a repair fails, and is tried again
//	                                     └──────┘
//
// In state known a Sync applies what differs from what was last accepted. In state unknown the slots of endpoints are
// not read but rewritten: the kernel writes them faster than it lists them. In state suspect everything is read: on a
// node where other programs keep changing rulesets, the backend would otherwise write slots without end.
//
// # Why two tables
//
// Everything is keyed by addresses, so one table of family inet would save nothing, and each packet would pass the
// rules of both families. With two tables a failure in one family does not affect the other, the kernel validates half
// as much for each change, and a kernel without IPv6 needs no special case.
//
// # Metrics
//
// With Options.Metrics the backend exports kube-proxy's metrics of this mode, with the same names and labels; ip_family
// is "IPv4" or "IPv6".
//
//	kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family}
//	kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family}
//
// The first counts failed attempts of Syncs and repairs: a transaction was refused, or the table could not be read.
// After an incremental attempt fails, the same Sync makes a full comparison, and may still succeed. The second counts
// failed transactions that should have removed obsolete objects: new flows are not affected, and the next comparison
// tries again. Attempts that are repeated because another program has changed rules meanwhile count only if the Sync
// gives up.
//
// # Measurements
//
// See docs/nft.md in the repository for the layouts that were compared, and the figures.
package nft

// Where things are:
//
//	family.go            a wave in one family: what is known of the table, and what is done if it fails
//	plan.go              the difference as two transactions
//	port.go, action.go   a service port: its frontends, slots, and the chain for what happens to its traffic
//	mixed.go             chains that are for two numbers of endpoints, and are no longer used
//	own.go               service ports with chains of their own
//	affinity.go          the rules of session affinity; groups.go: very many endpoints; clients.go: who shares a set;
//	                     lowered.go: timeouts
//	sources.go           source ranges
//	compare.go           reading the table, and adopting what is there
//	drift.go             what other programs have changed; its monitor is in internal/kernel/nft/dataplane
//	layout.go, probe.go  the table without services, and what the kernel must be able to do
