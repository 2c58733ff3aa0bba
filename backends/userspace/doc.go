// Package userspace is a backend that needs no kernel support: it proxies TCP connections and UDP datagrams in user
// space. It uses no netfilter, needs no privileges but those for its addresses, and runs wherever Go has sockets: in
// gVisor, in containers without CAP_NET_ADMIN, and on macOS and Windows for development. Authors of L4 proxies can
// start from it.
//
//	client ──► frontend (a listener or a socket) ──► decide: route, endpoint ──► connection to the endpoint
//
// # How traffic gets here
//
// This differs between platforms, so it is an interface, [Addresses], with two implementations:
//
//   - [Existing] is for addresses that the host already has, aliases on the loopback interface for example.
//   - [Localhost] serves cluster IPs on ports of 127.0.0.1 and ::1, for a developer's laptop. [Backend.Listeners]
//     returns the table of ports.
//
// # What it does
//
//   - If an endpoint does not accept a connection, two others are tried. All attempts but the last take a second at
//     most. For ten seconds other endpoints are preferred to the one that failed, also for clients with affinity to it.
//   - It does not connect to itself: endpoints that are addresses at which it listens are not used.
//   - It proxies TCP in both directions, with half-close, and with splice(2) on Linux. If one side resets its
//     connection, so does the other.
//   - It proxies UDP in flows that end when they have been idle for two minutes. A flow whose endpoint no longer serves
//     moves to another one (S40, S41).
//   - It follows traffic policies, session affinity across all addresses of a port (S32), source ranges (S26) and node
//     ports (S35, S36).
//   - A frontend without endpoints has no listener, so the kernel refuses connections (S25). Connections that are to be
//     dropped are accepted and not answered, for a minute and for an eighth of the connections at most; others are
//     reset. A user-space proxy cannot do better.
//   - Established connections continue when their endpoint or their service is deleted.
//   - There are at most 16,384 TCP connections, 4,096 UDP flows and 32,768 listeners at a time, fewer where the process
//     may not open that many files: a connection takes two file descriptors, on Linux six, the others one. At the limit
//     a newcomer replaces a connection or flow of the namespace with most, in it of the port with most, in that of the
//     client with most, and of these the one idle for longest. So a flood takes nothing from clients that have less.
//     Among equals a connection that is not idle is not replaced: the new one is reset. Of listeners a port can have
//     half, and a namespace three quarters.
//   - A port remembers the endpoints of 65,536 clients with affinity, and all ports together of four times as many.
//   - A connection ends when neither side has sent anything for a day, or for an hour once one side has ended its half:
//     the times for which kube-proxy has the kernel remember connections. TCP keepalives find dead peers within
//     minutes.
//   - A changed endpoint costs one slot, even in a service of 50,000 endpoints, and traffic never waits for a Sync.
//
// # Node ports on loopback addresses
//
// [NewLoopback] makes a sink that serves node ports on 127.0.0.1 and ::1 and nothing else (S36a). It runs next to a
// backend in the kernel, which can hardly do that; docs/node-services.md says more.
//
// It passes to its own [Backend] only what that needs: services with node ports, which have no other address there. A
// node port has one route, for every client: to the set that serves clients outside of the node, and refusing while
// that is empty. Options.LocalhostNodePorts is something else: with it a backend that serves everything does so on
// 127.0.0.0/8 as well, with the routes of the node (S36).
//
// With Options.Metrics it exports kube-proxy's metrics, with the same names and labels:
//
//	kubeproxy_nftables_localhost_nodeport_listeners{ip_family}
//	kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family}
//
// # What it cannot do
//
//   - Show endpoints the client's address: every connection is masqueraded.
//   - Proxy SCTP.
//   - Detect local pods by interface (S30): a socket does not know the interface. CIDRs work.
//   - Drop traffic to unallocated addresses of the service CIDRs (S33).
//   - Leave other ports of external IPs alone: they are refused, because the address is the host's. A process of the
//     host that listens on 0.0.0.0 answers on service addresses, at ports that no service has.
//   - Serve UDP under Wine 8, which lacks a request that Go makes for every UDP socket.
//
// # Figures
//
// docs/benchmarks.md compares throughput, latency, processor time and memory with the nft backend.
//
// # Restart
//
// Connections and flows live in the process and end with it. To restart without losing any:
//
//   - The next process gets the listening sockets that [Backend.Sockets] returns, as its [Options.Sockets]. It inherits
//     them, or gets them from a parent that holds them, such as systemd (LISTEN_FDS and the file-descriptor store).
//     Meanwhile new connections wait in the sockets' queues.
//   - The old process calls [Backend.Drain], which stops accepting and returns when all connections have ended.
package userspace
