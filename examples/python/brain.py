"""A client of a brain: what a node must do with service traffic.

remote.proto documents the messages; README.md says how to make remote_pb2 from it.
"""

import gzip
import ipaddress
import queue
import threading
import time

import grpc

import remote_pb2 as pb

READY, SERVING, TERMINATING = 1, 2, 4  # of Endpoint.conditions


class Service:
    """What all nodes of the class have of a service."""

    def __init__(self):
        self.service, self.endpoints = pb.Service(), {}


class State:
    """What the brain has said: the class's services, the node's own parts, and the node."""

    def __init__(self):
        self.node, self.services, self.own = pb.Node(), {}, {}
        self.resume = None  # what to go on from

    def apply(self, batch):
        """Takes a whole batch: from its first message to the one with sync."""
        if batch[0].kind == pb.RESET:
            self.services = {}
        if any(update.ownReset for update in batch):
            self.own = {}
        for update in batch:
            if update.HasField("node"):
                self.node = update.node
            for change in update.services:
                self.apply_change(change)
            for part in update.own:
                if len(part.ListFields()) > len([f for f in (part.namespace, part.name) if f]):
                    self.own[part.namespace, part.name] = part
                else:
                    self.own.pop((part.namespace, part.name), None)

    def apply_change(self, change):
        name = change.namespace, change.name
        if change.deleted:
            self.services.pop(name, None)
            return
        known = self.services.setdefault(name, Service())
        if change.HasField("service"):
            known.service = change.service
        if change.whole:
            known.endpoints = {}
        for endpoint in change.removed:
            known.endpoints.pop(key(endpoint), None)
        for endpoint in change.endpoints:
            known.endpoints[key(endpoint)] = endpoint

    def endpoints(self, name):
        """The class's endpoints with the node's own put over them, in order. See "Two layers" in remote.proto."""
        part = self.own.get(name, pb.NodePart())
        unselected = {(u.port, u.protocol, u.family) for u in part.unselected}
        result = {}
        for k, endpoint in self.services[name].endpoints.items():
            if (endpoint.port, endpoint.protocol, family(endpoint)) in unselected:
                if endpoint.protocol != pb.UDP or not endpoint.conditions & SERVING:
                    continue
                unused = pb.Endpoint()
                unused.CopyFrom(endpoint)
                unused.sets = 0
                endpoint = unused
            result[k] = endpoint
        result.update((key(endpoint), endpoint) for endpoint in part.endpoints)
        return [result[k] for k in sorted(result)]

    def source_ranges(self, service):
        """The ranges, with the VIPs of a family if the node's address of that family is in one of them."""
        ranges = [network(r) for r in service.loadBalancerSourceRanges]
        result = set(ranges)
        for version in 4, 6:
            ips = [ip for ip in map(ipaddress.ip_address, self.node.ips) if ip.version == version]
            if any(ips[0] in r for r in ranges if ips and r.version == version):
                vips = map(ipaddress.ip_network, service.loadBalancerIPs)
                result.update(vip for vip in vips if vip.version == version)
        ordered = []
        for r in sorted(result, key=lambda r: (r.version, r.network_address, r.prefixlen)):
            if not ordered or ordered[-1].version != r.version or not r.subnet_of(ordered[-1]):
                ordered.append(r)
        return ordered


def key(endpoint):
    return endpoint.port, endpoint.protocol, len(endpoint.address), endpoint.address, endpoint.targetPort


def family(endpoint):
    return 4 if len(endpoint.address) == 4 else 6


def network(prefix):
    return ipaddress.ip_network((prefix.address, prefix.bits))


def watch(channel, node, state, changed):
    """Follows one stream, and calls changed(state) for each complete state, until that returns True.

    It raises an error when the stream ends, or when the brain has been silent for too long.
    The state goes on to the next stream: then the brain sends what has changed since.
    """
    requests, updates = queue.Queue(), queue.Queue()
    requests.put(pb.Request(hello=pb.Hello(node=node, resume=state.resume)))
    call = channel.stream_stream("/kubeproxy.remote.v1.Brain/Watch", pb.Request.SerializeToString,
                                 pb.Update.FromString)(iter(requests.get, None))

    def receive():
        try:
            for update in call:
                updates.put(update)
        except grpc.RpcError as error:
            updates.put(error)
        else:
            updates.put(ConnectionError("the brain has ended the stream"))

    threading.Thread(target=receive, daemon=True).start()
    batch, silence, instance = [], 15, ""
    try:
        while True:
            try:
                update = updates.get(timeout=silence)
            except queue.Empty:
                raise ConnectionError(f"the brain is silent for {silence} s") from None
            if isinstance(update, Exception):
                raise update
            if update.heartbeatMillis:
                silence = 3 * update.heartbeatMillis / 1000
            instance = update.instanceID or instance
            if update.kind == pb.HEARTBEAT:
                continue
            if update.kind == pb.LATER:
                time.sleep(update.retryAfterMillis / 1000)
                raise ConnectionError("the brain has too much to do")
            batch.append(update)
            if update.compressed:
                inner = pb.Update.FromString(gzip.decompress(update.compressed))
                inner.kind = update.kind
                batch.insert(-1, inner)
            if not update.HasField("sync"):
                continue
            state.apply(batch)
            state.resume = pb.Resume(instanceID=instance, revision=update.sync.revision)
            end = batch[0].kind != pb.RESUMED and changed(state)
            batch = []
            requests.put(pb.Request(ack=pb.Ack(revision=update.sync.revision)))  # error: what could not be applied
            if end:
                return
    finally:
        call.cancel()
        requests.put(None)
