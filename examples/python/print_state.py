"""Prints what a node must do with service traffic, according to a brain: as "kubectl serviceproxy state --brain" does.

    python3 print_state.py --server unix:///run/kube-proxy-lib/brain.sock --node-name NODE [--once]
"""

import argparse
import ipaddress
import random
import sys
import time

import grpc

import brain
import remote_pb2 as pb

KINDS = (("cluster IP", "clusterIP"), ("external", "external"), ("external from local pod", "externalFromPod"),
         ("external from node", "externalFromNode"))


def lines(state):
    node, pods = state.node, state.node.localPods
    yield f"node {node.name}" + fields(
        ("zone", node.zone), ("ips", ips(node.ips)), ("pods", join(map(brain.network, node.podCIDRs))),
        ("services", join(map(brain.network, node.serviceCIDRs))), ("local-pods", join(map(brain.network, pods.cidrs))),
        ("bridge", pods.bridge), ("interfaces", pods.interfacePrefix)) + node.notEligible * " not-eligible"
    for name in sorted(state.services):
        yield from service_lines(state, name)
        for endpoint in state.endpoints(name):
            yield "  " + endpoint_line(name, endpoint)


def service_lines(state, name):
    s, part = state.services[name].service, state.own.get(name, pb.NodePart())
    line = f"service {name[0]}/{name[1]}" + s.headless * " headless" + fields(
        ("external-name", s.externalName), ("cluster-ips", ips(s.clusterIPs)), ("external-ips", ips(s.externalIPs)),
        ("load-balancer-ips", ips(s.loadBalancerIPs)), ("source-ranges", join(state.source_ranges(s))),
        ("internal", s.internalTrafficPolicy == pb.TRAFFIC_POLICY_LOCAL and "Local"),
        ("external", s.externalTrafficPolicy == pb.TRAFFIC_POLICY_LOCAL and "Local"),
        ("affinity", duration(s.sessionAffinityTimeout)))
    if s.HasField("healthCheck"):
        line += (f" health-check={s.healthCheck.nodePort} (local endpoints: IPv4 {part.localEndpointsIPv4}, "
                 f"IPv6 {part.localEndpointsIPv6})")
    yield line
    for port in s.ports:
        label = f"{port.name} " if port.name else ""
        yield f"  {label}{port.port}/{pb.Protocol.Name(port.protocol)}" + fields(("node-port", port.nodePort))
        for version, routes in ("IPv4", port.routesIPv4), ("IPv6", port.routesIPv6):
            for kind, route in KINDS:
                if routes.HasField(route):
                    yield f"    {version} {kind}: {route_text(getattr(routes, route))}"


def route_text(route):
    masquerade = {pb.MASQUERADE_NEVER: "Never", pb.MASQUERADE_ALWAYS: "Always",
                  pb.MASQUERADE_UNLESS_LOCAL_POD: "UnlessLocalPod"}[route.masquerade]
    empty = "Drop" if route.empty == pb.VERDICT_DROP else "Reject"
    return f"{sets(route.endpoints)}, masquerade {masquerade}, if empty {empty}"


def endpoint_line(service, e):
    address = ipaddress.ip_address(e.address)
    target = f"[{address}]:{e.targetPort}" if address.version == 6 else f"{address}:{e.targetPort}"
    port = f":{e.port}" if e.port else ""
    return (f"endpoint {service[0]}/{service[1]}{port}/{pb.Protocol.Name(e.protocol)} -> {target} sets={sets(e.sets)}"
            + fields(("node", e.node)) + e.local * " local" + (not e.conditions & brain.READY) * " not-ready"
            + (not e.conditions & brain.SERVING) * " not-serving"
            + bool(e.conditions & brain.TERMINATING) * " terminating")


def fields(*pairs):
    return "".join(f" {name}={value}" for name, value in pairs if value)


def join(values):
    return ",".join(map(str, values))


def ips(addresses):
    return join(map(ipaddress.ip_address, addresses))


def sets(bits):
    return {0: "-", 1: "Cluster", 2: "Local", 3: "Cluster,Local"}[bits]


def duration(seconds):
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else seconds and f"{seconds}s"


def main():
    parser = argparse.ArgumentParser(description="print what a node must do with service traffic, according to a brain")
    parser.add_argument("--server", required=True, help="unix:///PATH or ADDRESS:PORT")
    parser.add_argument("--node-name", required=True)
    parser.add_argument("--once", action="store_true", help="print the state once, and end")
    parser.add_argument("--ca-file", help="the certificates that the server's is verified by, for ADDRESS:PORT")
    parser.add_argument("--tls-cert-file", help="the client's certificate")
    parser.add_argument("--tls-private-key-file", help="its key")
    args = parser.parse_args()
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]
    if args.ca_file:
        files = [open(f, "rb").read() for f in (args.ca_file, args.tls_private_key_file, args.tls_cert_file)]
        channel = grpc.secure_channel(args.server, grpc.ssl_channel_credentials(*files), options)
    else:
        channel = grpc.insecure_channel(args.server, options)

    def changed(state):
        print("\n".join(lines(state)), flush=True)  # a backend programs its dataplane here
        return args.once

    state = brain.State()
    while True:
        try:
            return brain.watch(channel, args.node_name, state, changed)
        except (grpc.RpcError, ConnectionError) as error:
            reason = error.details() if isinstance(error, grpc.RpcError) else error
            print(f"no connection: what was printed last stays: {reason}", file=sys.stderr)
            time.sleep(random.uniform(0.5, 1.5))


if __name__ == "__main__":
    main()
