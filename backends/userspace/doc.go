// Package userspace is a backend without a kernel: a proxy of connections and datagrams in user space. It needs no
// netfilter and no privileges beyond those that its addresses take, and runs wherever Go has sockets: in gVisor, in
// containers without CAP_NET_ADMIN, on macOS and Windows for development. It is also what the author of an L4 proxy can
// start from.
//
//	client ──► frontend (a listener or a socket) ──► decide: route, endpoint ──► connection to the endpoint
//
// # How traffic gets here
//
// That is the part that differs from platform to platform, and so it is an interface, [Addresses]:
//
//   - [AnyIP] makes service addresses local ones in the routing table (Linux, CAP_NET_ADMIN in the network namespace).
//   - [Given] is for addresses that are there already, aliases on the loopback interface for example.
//   - [Localhost] serves cluster IPs on ports of 127.0.0.1 and ::1, for a developer's laptop. [Backend.Listeners] has
//     the table of ports, and examples/userspace prints it.
//
// # What it does
//
//   - TCP in both directions with half-close, and with splice(2) on Linux. A connection that one side resets is reset
//     on the other. UDP in flows with a timeout; a flow whose endpoint no longer serves moves to another one (S40,
//     S41).
//   - Traffic policies, session affinity over all addresses of a port (S32), source ranges (S26), node ports (S35,
//     S36).
//   - A frontend without endpoints has no listener, so that the kernel refuses its connections (S25). What is to be
//     dropped is accepted and never answered: a user-space proxy cannot do better.
//   - Connections that stand go on when their endpoint or their service goes.
//   - Bounds: [Options.MaxConnections] and [Options.MaxFlows]. Beyond the first one new connections wait in the
//     listener's queue, beyond the second a flow that was silent for long makes room.
//   - One changed endpoint is one slot, in a service of 50,000 endpoints as well; no traffic waits for a Sync.
//
// # Keeping the source
//
// With [Options.KeepSource] the backend connects from the client's address wherever the route does not masquerade. That
// is where a proxy in the kernel would keep it, hairpins aside (S27, S28, S29). The port is another one.
//
//	client C ──► 192.0.2.1:80 [ accept, decide, connect from C ] ──► endpoint E
//	client C ◄── 192.0.2.1:80 [ transparent socket ◄── policy route ] ◄── E answers C
//
// The endpoint answers C, an address that is not this node's, so two things are needed:
//
//   - The answer passes this node. The routes see to that: external traffic is masqueraded or goes to endpoints of this
//     node, and the answers to its own pods come back anyway. As with kube-proxy there are exceptions: clients elsewhere
//     that use cluster IPs while no detector for local pods is configured, and pods that reach each other past the node,
//     on one bridge.
//   - The node delivers it to this process. examples/userspace/keep-source, a script to be run in the network namespace,
//     sees to that: nftables puts a mark on the connections of transparent sockets and on the answers to them, and an
//     "ip rule" for the mark looks them up in a routing table whose one route says "local default dev lo". The backend
//     itself changes neither nftables nor rules.
//
// What clients send to endpoints themselves is not touched, unless a client does so from the very port that the backend
// has taken in its name for a connection to that endpoint, while it lasts. The kernel takes these ports from the node's
// ephemeral ones.
//
// New fails where the process may not open transparent sockets, which takes Linux and CAP_NET_ADMIN. Without the second
// part connections to endpoints time out.
//
// # What it cannot do
//
//   - Show endpoints the client's address on other systems than Linux, or without [Options.KeepSource]: every
//     connection is masqueraded.
//   - SCTP.
//   - Detecting local pods by interface (S30): a socket does not tell the interface. CIDRs work.
//   - Dropping traffic to unallocated addresses of the service CIDRs (S33).
//   - With AnyIP a process of the node that listens on 0.0.0.0 answers on the service addresses, too, at ports that no
//     service has; and other ports of external IPs are refused, because the address is the node's now.
//
// # Restart
//
// Connections and flows live in the process and end with it. Without loss it goes like this: [Backend.Sockets] returns
// the listening sockets, which the next process gets as [Options.Sockets], by inheritance or from a parent that holds
// them (systemd's LISTEN_FDS and file-descriptor store); new connections wait in their queues meanwhile. The old
// process calls [Backend.Drain], which accepts no more and returns when its connections have ended. Routes of AnyIP
// stay until [Backend.CleanUp].
package userspace
