// Package ipvs is a service proxy for Linux with IPVS, for programs that feed it through package sink. [New] returns a
// [Backend]; its Sync applies the wanted state. Use it if you depend on IPVS: on its schedulers, on its tools such
// as ipvsadm, on appliances for UDP. Otherwise use package nft.
//
// # What it guarantees
//
//   - The cost of a wave is proportional to what it changes: a replaced endpoint is two requests to the kernel for each
//     virtual server of its service port, whatever the size of the cluster. Virtual servers are never listed for a
//     change.
//   - An endpoint that is removed takes no new connections from that moment. Its TCP connections continue until they
//     end, however long that takes; UDP and SCTP ones end when the endpoint no longer serves. The same holds for a
//     service that is removed.
//   - A restart keeps traffic. The first Sync reads what an earlier process left, draining endpoints included, and
//     corrects the difference; if there is none it writes nothing. Virtual servers of upstream kube-proxy that have the
//     address and port of a service are taken over as they stand, with their connections. Virtual servers of others by
//     packet mark never are: the service port gets another mark.
//   - Changes by others in its nftables tables, and the deletion of its interface or of an address there, are noticed
//     and repaired at once; virtual servers that others delete are back within about 10 seconds. Other changes in
//     IPVS are noticed at the next full resync.
//   - A request that fails, for example because no host can have the endpoint's address, fails only its service port: a
//     [sink.PortError]. Everything else is served. It is tried again when it changes, at a retry and at a resync.
//     Errors that concern all requests, such as missing privileges, fail the family: the next Sync reads what the
//     kernel has.
//   - A virtual server that another program has changed is read again as soon as a request meets the difference.
//   - An address is on the dummy interface only while the packet filter guards it: ports of the node can never be
//     reached through a service's address, except for health checks (S38).
//   - Packets to a service are not translated by other programs that translate packets to the node's own addresses, for
//     example for host ports of pods (S62).
//   - At addresses of API servers, and of other nodes as far as Options.OtherNodes knows them, only the services' ports
//     are taken: such an address is never on the dummy interface (S63).
//
// # What it never does
//
// It touches only its own virtual servers, which it marks with a flag that no scheduler of the kernel reads
// ([dataplane.Owned]), and those that it takes over; in Options.ExcludeCIDRs it takes over none. It touches only the
// tables of its name, its own interface, and a routing rule and a route of its own protocol
// ([dataplane.DeliveryProtocol]). It does not clean up, except on request ([Backend.CleanUp], [CleanUp]). It
// does not delete flows of connection tracking: wrap it with package conntrack.
//
// # The path of a packet
//
//	from pods and from outside                          from the node itself
//	        │                                                  │
//	filter prerouting, priority -150                           │
//	  in other-ips? set a mark, by which it is                 │
//	  delivered locally after prerouting (S63)                 │
//	        │                                                  │
//	nat prerouting, priority -110                       nat output, priority -110
//	        └───────────────────────┬──────────────────────────┘
//	                                ▼   (only the first packet of a connection)
//	  1. address . protocol . port in service-ips? ──► go to the chain that it says:
//	        reject-traffic, drop-traffic                no endpoint (S25)
//	        keep-source                                 bind it to its destination (S62), go on
//	        masquerade-traffic                          set the mark of S31, bind it, go on
//	        masquerade-nonpod                           ... unless a pod of this node sends (S28)
//	        restricted-LIST-...                         drop unless sources-LIST returns (S26), then as above
//	        pod-...-node-...-other-...                  one of these by source; pods and the node get a mark (S27)
//	  2. address in bound-ips? ──────────────────────► reject: a port that no service has (S33),
//	                                │                  unless it is that of a health check (S38)
//	                                │
//	   the address is the node's own, on the dummy interface or as one for node ports, or there is the mark of S63:
//	   local delivery
//	                                ▼
//	IPVS, in input at priority 99, in output at -98
//	        ├── connection known? ─────────────────────────► its endpoint
//	        ├── virtual server of the packet's mark? ──────► the scheduler chooses an endpoint
//	        └── virtual server of address, protocol, port? ─► the scheduler chooses an endpoint
//	        IPVS rewrites the destination, and notes that in connection tracking.
//	                                ▼
//	nat postrouting, priority 100
//	        ├── mark of S31? ──────────────────────────► clear it, masquerade
//	        └── source . destination in hairpin? ──────► masquerade (S29)
//
// A filter on forward and output drops new connections to other addresses of the service CIDRs (S33). Replies pass
// through IPVS in forward, which restores the service's address.
//
// An external address of a service with traffic policy Local serves different endpoints to different sources (S27).
// IPVS does not distinguish sources. So there are up to two more virtual servers for such a port, which IPVS finds by
// packet mark: one for pods of this node, one for the node itself.
//
// # Why nftables, and not iptables with ipsets
//
// Upstream's mode ipvs uses both: a dozen ipsets, which cannot be changed together with each other or with the chains
// that look them up. With nftables a service's rule, its source ranges and its guard change in one transaction; one
// lookup in the verdict map replaces upstream's series of set lookups; and a change by others is noticed at once. IPVS
// works with either, because both use the same hooks, before and after it. All kernels that Kubernetes supports have
// nftables. Without it, [New] fails with an error that says what is missing; it does not fall back to iptables.
//
// # What IPVS cannot do
//
//   - Session affinity (S32) is IPVS's persistence, which is per virtual server: a client has an endpoint for each
//     address of the port, not one for all. It lasts while any connection of the client is remembered, if that is
//     longer than the timeout: 2 minutes after a TCP connection, 5 minutes after a UDP packet. A changed timeout holds
//     for new clients alone: the kernel's entries of those that it knows keep theirs (docs/ipvs.md).
//   - Persistence does not work for virtual servers by mark if endpoints have another port than the service. So
//     scheduler sh keeps pods of this node, and the node itself, at their endpoint of an external address with traffic
//     policy Local: by their address alone, until the set of endpoints changes.
//   - External IPs and VIPs are addresses of the node: new connections to their ports that no service has are refused,
//     while other backends leave them alone.
//   - Processes of the node cannot send services datagrams that are larger than the MTU of the path to the endpoint:
//     they get EMSGSIZE. A service's address is the node's own, so the path seems to have the loopback interface's MTU,
//     and IPVS refuses what does not fit the real one. Datagrams of pods and from outside come in fragments, and pass.
//   - Node ports are not served on loopback addresses (S36). Each node port has a virtual server at each address of the
//     node that serves node ports: choose few.
//   - While a TCP connection to a removed node port lasts, or to a removed external IP that is the node's own address
//     or another machine's, its virtual server stays, because the kernel drops the packets of connections without one.
//     The kernel refuses new connections there, also those to a process of the node that listens on this port. They
//     reach it at most 10 seconds after the last connection has ended, which "ipvsadm -D -t ADDRESS:PORT" does at once.
//   - Marks are compared as a whole. If another program has set bits of a packet's mark, the sources of S27 are treated
//     like all others.
//
// # Metrics
//
// With Options.Metrics the backend exports these, in addition to those of kubeproxy.Run; ip_family is "IPv4" or "IPv6".
//
//	kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family}
//	kubeproxy_sync_proxy_rules_ipvs_requests_total{ip_family}
//	kubeproxy_sync_proxy_rules_ipvs_request_failures_total{ip_family}
//	kubeproxy_sync_proxy_rules_ipvs_resyncs_total{ip_family}
//	kubeproxy_sync_proxy_rules_ipvs_repairs_total{ip_family}
//	kubeproxy_sync_proxy_rules_ipvs_virtual_servers{ip_family}
//	kubeproxy_sync_proxy_rules_ipvs_draining_endpoints{ip_family}
//
// The first has its name from kube-proxy's mode nftables. Kube-proxy's mode ipvs, which uses iptables, has the
// counterpart of mode iptables instead, and no metrics for IPVS. Requests are those to IPVS and those for addresses on
// the dummy interface. A resync is a Sync with a full comparison with the kernel: the first one, one after a failure,
// and periodic ones. Repairs are those of the nftables tables, of the interface, and of the rule and route of S63. A
// draining endpoint counts once for each of its virtual servers.
//
// # Kernels
//
// Linux 5.13 or later with nf_tables as for package nft, and the modules ip_vs, the scheduler's (ip_vs_rr ...) and
// dummy. New fails with a [*dataplane.MissingModuleError] that names the one that is missing. Without ip_vs_sh there is
// no session affinity by mark (above). Sync sets net/ipv4/vs/conntrack, expire_nodest_conn and
// expire_quiescent_template, and net/ipv4/ip_forward, as kube-proxy does; Options.StrictARP sets arp_ignore and
// arp_announce. Forwarding of IPv6 is left to the administrator, because it makes the kernel ignore router
// advertisements; while it is off, each full comparison logs an error. On big-endian processors New fails, because
// github.com/moby/ipvs misreads the weights of endpoints there.
//
// See docs/ipvs.md in the repository for inspection, the cost of changes, and migration from kube-proxy's mode ipvs.
package ipvs

// Where things are:
//
//	family.go               a wave in one family, and the order of what it does
//	ports.go                which virtual servers the service ports want
//	server.go               a virtual server: its endpoints, and those that drain
//	addresses.go, others.go the dummy interface, and addresses of other machines
//	filter.go, rules.go     the packet filter; marks.go: the packets of node ports
//	missing.go              virtual servers that another program has deleted
//	refused.go              what the kernel refuses, and whose it is
//	sysctls.go, upstream.go kernel parameters, and what kube-proxy left
