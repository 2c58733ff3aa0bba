// Package iptables is a service proxy for Linux with iptables, nft or legacy, for programs that feed it through package
// sink. [New] returns a [Backend]; its Sync writes rules for the wanted state. It is built on package frontend and
// uses its terms: frontend, owner, backend set.
//
// # What it guarantees
//
//   - A Sync writes what changed, usually one chain, in one run of iptables-restore --noflush per family. No chain
//     grows with the cluster, and only those of session affinity grow with a service.
//   - A restart keeps traffic. The first Sync reads our chains as an earlier process left them, rewrites those that
//     differ, and removes those that are no longer needed; nothing is flushed. Jumps to our chains are put into the
//     built-in ones together with them, never before.
//   - Endpoints are added and removed atomically: all that packets notice in a table changes at once. With
//     iptables-nft, if there are many, new chains are made before that and old ones removed after it, in transactions
//     of their own. A change that adds more rules to table filter than it removes writes that table first, any other
//     writes table nat first: a service that gets its first endpoint is served before its refusal is removed, and one
//     that loses its last is refused before it is no longer served.
//   - Changes by others are noticed and repaired, usually within a second, and at a resync at the latest.
//   - A service port that iptables or the kernel refuses, for example because a match is missing, is left out and named
//     in a [sink.PortError]. Everything else is served. It is tried again when it changes, at a retry and at a resync.
//   - The output of iptables-save is readable: chains are named for their purpose, and rules carry the name of their
//     service port. [Backend.DescribeService] returns those of one service.
//
// # What it never does
//
// It touches only chains whose names begin with "KPL-", and in built-in chains only the jumps to these. It does not
// clean up, except on request ([Backend.CleanUp], [CleanUp]). It does not touch the mark of packets that are not for a
// service. It does not delete the flows of removed endpoints: wrap it with package conntrack. Like upstream kube-proxy
// in this mode it neither refuses unknown ports of cluster IPs nor drops traffic to unallocated addresses of the
// service CIDRs (S33): the former would cost a rule for each service.
//
// # Machines
//
// iptables 1.6.2 or later, tried with 1.8.9; see package dataplane for which programs are chosen. The kernel needs the
// matches addrtype, comment, conntrack, mark, statistic and recent and the targets DNAT, MARK, MASQUERADE and REJECT,
// as for kube-proxy. Without the match bpf the backend uses rules for single endpoints instead (S29).
//
// # The path of a packet
//
// Only the first packet of a connection passes table nat; the others follow connection tracking.
//
//	PREROUTING (from pods and from outside)        OUTPUT (from the node itself)
//	        │                                              │
//	        └───────────────────┬──────────────────────────┘
//	                            ▼
//	 KPL-SERVICES ── 0. KPL-MARKED                  if others have set our mark: steps 1 to 3 without touching the mark
//	                 1. KPL-TCP, -UDP, -SCTP        frontends whose own rules set the mark, or that need none
//	                 2. mark all but this node's pods
//	                    KPL-P-TCP, -UDP, -SCTP      cluster IPs (S28)
//	                 3. mark all
//	                    KPL-M-TCP, -UDP, -SCTP      external addresses, traffic policy Cluster (S27)
//	                    KPL-NODEPORTS, if the address is one of the node's that serve node ports (S35)
//	                 4. clear the mark: not ours
//
//	 KPL-P-TCP ──► KPL-P-TCP-0-4095 ──► ... ──► KPL-P-TCP-80 ──► KPL-P-TCP-80.2 ──► KPL-P-TCP-80.21
//	               by ports, if there are many frontends         by the lowest bits of the address
//
//	 and in the last of these chains, for each frontend one of
//
//	 -d 10.96.0.10/32 -p tcp ... -j DNAT --to-destination     for each endpoint, with a chance of 1 in N, 1 in N-1 ...
//	 -j KPL-P-TCP-80.21/10                                    a group: frontends that have 10 endpoints draw together
//	 -d 10.96.0.10/32 -p tcp -g KPL-CLUSTER-...               the cluster set, in a chain of the service port's own
//	 -d 10.96.0.10/32 -p tcp -g KPL-EXT-...                   a set that depends on where the packet comes from (S27)
//	 -d 10.96.0.10/32 -p tcp -g KPL-ALLOW-...                 only if the source is in a range (S26)
//
// A list of more than 8 source ranges is a chain KPL-SOURCES-..., which all ports with that list share.
//
//	POSTROUTING, destination translated ──► KPL-POSTROUTING
//	        ├── marked, to a loopback address (S36): count
//	        ├── source and destination are the same (S29) ──► KPL-MASQUERADE
//	        └── marked (S31): clear the mark ───────────────► KPL-MASQUERADE
//
//	INPUT ──► KPL-HEALTHCHECK                  accept traffic to the node ports of health checks (S38)
//	INPUT, FORWARD, OUTPUT, new connections ──► KPL-REFUSE, destination not translated
//	        ├── KPL-F-TCP, -UDP, -SCTP         what has no endpoint: REJECT or DROP (S25); VIPs closed to some (S26)
//	        └── KPL-REFUSE-NODEPORTS           the same for node ports
//	FORWARD ──► KPL-FORWARD                    drop what conntrack finds invalid (S34), accept service traffic
//	INPUT, OUTPUT ──► KPL-LOCALNET             keep others from loopback addresses that serve node ports (S36)
//
// A service port has its own chains if it has several frontends or many endpoints, and for session affinity (S32). A
// set of more than 128 endpoints is split into several, KPL-C0-..., KPL-C1-... (L for the local set), of which
// KPL-CLUSTER-... draws one. Session affinity has a list of clients in /proc/net/xt_recent for each endpoint. The
// kernel keeps 100 clients in each by default, and forgets the least recently seen one.
//
// # What is known about the tables
//
// Each family is in one of these states, initially unknown. Drift is checked for every second.
//
//	state        the tables hold                          next
//	───────────  ───────────────────────────────────────  ───────────────────────────────────────────────────────────
//	known        what is wanted, as far as iptables       Sync writes changes ─► known
//	             can print it                             a generation that is not ours, seen by Sync ─► suspect
//	                                                      the same, seen by a check: reads; same ─► known
//	suspect      what is wanted, unless others wrote      Sync writes changes ─► suspect
//	             meanwhile                                check reads; nothing is different ─► known
//	unknown      anything                                 Sync, first or retry: reads, writes what differs ─► suspect
//	                                                      if nothing was ─► known
//	unrepaired   anything                                 as unknown, and the check does it as well
//
//	any          a Sync fails, ForceResync, CleanUp ─► unknown
//	any trusted  a check writes what is different ─► suspect, or fails ─► unrepaired
//
// A chain that is to go, but to which a chain of others jumps, is only emptied. A resync tries again to remove it.
//
// # Metrics
//
// With Options.Metrics the backend exports kube-proxy's metrics of this mode, with the same names and labels. table is
// "nat" or "filter", ip_family "IPv4" or "IPv6"; all names begin with kubeproxy_sync_proxy_rules_iptables_:
//
//	total{table,ip_family}                            rules that are ours, now
//	last{table,ip_family}                             those that the last Sync or repair wrote
//	restore_failures_total{ip_family}                 runs of iptables-restore that failed
//	partial_restore_failures_total{ip_family}         those of changes alone among them
//
// and, of both families together, what the kernel's nfacct counts for the rules:
//
//	kubeproxy_iptables_ct_state_invalid_dropped_packets_total        packets dropped as invalid (S34)
//	kubeproxy_iptables_localhost_nodeports_accepted_packets_total    flows to node ports on loopback addresses (S36)
//
// These two are absent where the kernel has no nfacct, or where it or the program has no match for it, which the log
// says once for each family, before the first Sync and after a CleanUp. Not counted are flows that a rule of others has
// masqueraded before; a host port of others that sets the backend's mark is.
//
// The jumps to our chains in built-in chains are counted, which kube-proxy leaves out. A Sync that has nothing to write
// sets last to 0; a restore that fails leaves both gauges unchanged. A full comparison follows a failed restore of
// changes. A refused service port fails one restore; the runs that find out which port it is do not count.
//
// See docs/iptables.md in the repository for the layouts that were compared, and the figures.
package iptables
