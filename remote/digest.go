package remote

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
	"math/bits"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// digestVersion is that of the digests that this package computes. It changes with anything that is hashed: peers
// with different versions do not compare.
const digestVersion = 1

// digest is a sum, modulo 2^128, of hashes of all that a state says: of every service, endpoint, node and part, each
// the first 16 bytes of the SHA-256 of its fields, strings and lists with their lengths before them. It says what a
// state means, not how a replica came to it or encoded it, and costs what changes. It guards against accidents:
// somebody who may make endless numbers of objects could find two states with one digest, and gains a stale state of
// a resumed client.
type digest struct{ hi, lo uint64 }

func (d digest) add(o digest) digest {
	lo, carry := bits.Add64(d.lo, o.lo, 0)
	hi, _ := bits.Add64(d.hi, o.hi, carry)
	return digest{hi, lo}
}

func (d digest) sub(o digest) digest {
	lo, borrow := bits.Sub64(d.lo, o.lo, 0)
	hi, _ := bits.Sub64(d.hi, o.hi, borrow)
	return digest{hi, lo}
}

func (d digest) bytes() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, digestSize), d.hi), d.lo)
}

const digestSize = 16

func parseDigest(b []byte) (digest, bool) {
	if len(b) != digestSize {
		return digest{}, false
	}
	return digest{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, true
}

// numBuckets is the number of groups of services that have a digest each.
const numBuckets = 256

// buckets are the digests of what a class has, by group of services.
type buckets [numBuckets]digest

func bucketOf(name model.ServiceName) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name.String())) // never fails
	return int(h.Sum32() % numBuckets)
}

func (b *buckets) root() digest {
	var sum digest
	for _, d := range b {
		sum = sum.add(d)
	}
	return sum
}

func (b *buckets) bytes() []byte {
	var out []byte
	for _, d := range b {
		out = append(out, d.bytes()...)
	}
	return out
}

func parseBuckets(in []byte) (*buckets, bool) {
	if len(in) != numBuckets*digestSize {
		return nil, false
	}
	var b buckets
	for i := range b {
		b[i], _ = parseDigest(in[i*digestSize : (i+1)*digestSize])
	}
	return &b, true
}

// change brings the buckets up to date. The cost is that of what changed in the service.
func (b *buckets) change(c sink.Change) {
	d := &b[bucketOf(c.Name)]
	if c.ServiceChanged() {
		if c.Old != nil {
			*d = d.sub(serviceDigest(c.Old.Service))
		}
		if c.New != nil {
			*d = d.add(serviceDigest(c.New.Service))
		}
	}
	for before, now := range c.Endpoints() {
		if before != nil {
			*d = d.sub(endpointDigest(before))
		}
		if now != nil {
			*d = d.add(endpointDigest(now))
		}
	}
}

// entryDigest is that of one service with its endpoints.
func entryDigest(e *sink.ServiceEntry) digest {
	d := serviceDigest(e.Service)
	for _, ep := range e.Endpoints {
		d = d.add(endpointDigest(ep))
	}
	return d
}

// serviceDigests are those of the services of some buckets.
func serviceDigests(s *sink.Snapshot, wanted []uint32) map[model.ServiceName]digest {
	var in [numBuckets]bool
	for _, b := range wanted {
		in[b%numBuckets] = true
	}
	out := map[model.ServiceName]digest{}
	for e := range s.Services() {
		if in[bucketOf(e.Service.Name)] {
			out[e.Service.Name] = entryDigest(e)
		}
	}
	return out
}

// ownDigest is that of what one node has of its own.
func ownDigest(node *model.Node, parts map[model.ServiceName]*localstate.NodePart) digest {
	d := nodeDigest(node)
	for name, p := range parts {
		d = d.add(partDigest(name, p))
	}
	return d
}

func digestMessage(shared, own digest) *remotev1.Digest {
	return &remotev1.Digest{Version: digestVersion, Shared: shared.bytes(), Own: own.bytes()}
}

// fields are what is hashed, one after the other. No field can be taken for another: each has a fixed place, and a
// length where that varies. The methods append, so that what is hashed stays on the stack.
type fields []byte

// typicalFields is room for what most values have, so that it does not grow.
const typicalFields = 512

func (f fields) uint(n uint64) fields { return binary.AppendUvarint(f, n) }

func (f fields) text(s string) fields { return append(f.uint(uint64(len(s))), s...) }

func (f fields) bool(v bool) fields {
	if v {
		return f.uint(1)
	}
	return f.uint(0)
}

func (f fields) addr(a netip.Addr) fields {
	if a.Is4() {
		b := a.As4()
		return append(f.uint(uint64(len(b))), b[:]...)
	}
	return f.text(string(a.AsSlice()))
}

func (f fields) addrs(list []netip.Addr) fields {
	f = f.uint(uint64(len(list)))
	for _, a := range list {
		f = f.addr(a)
	}
	return f
}

func (f fields) prefixes(list []netip.Prefix) fields {
	f = f.uint(uint64(len(list)))
	for _, p := range list {
		f = f.addr(p.Addr()).uint(uint64(p.Bits()))
	}
	return f
}

func (f fields) texts(list []string) fields {
	f = f.uint(uint64(len(list)))
	for _, s := range list {
		f = f.text(s)
	}
	return f
}

func (f fields) mapping(m map[string]string) fields {
	f = f.uint(uint64(len(m)))
	var room [16]string // most have fewer
	keys := room[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		f = f.text(k).text(validText(m[k]))
	}
	return f
}

func (f fields) name(n model.ServiceName) fields { return f.text(n.Namespace).text(n.Name) }

func (f fields) sum(kind string) digest {
	h := sha256.Sum256(f.text(kind))
	d, _ := parseDigest(h[:digestSize])
	return d
}

func serviceDigest(s *model.Service) digest {
	var room [typicalFields]byte
	f := fields(room[:0])
	f = f.name(s.Name)
	f = f.text(s.UID)
	if !s.Created.IsZero() {
		f = f.uint(uint64(s.Created.Unix()))
	} else {
		f = f.uint(0)
	}
	f = f.uint(uint64(s.Type))
	f = f.bool(s.Headless)
	f = f.text(s.LoadBalancerClass)
	f = f.text(s.ExternalName)
	f = f.mapping(s.Labels)
	f = f.mapping(s.Annotations)
	f = f.addrs(s.ClusterIPs)
	f = f.addrs(s.ExternalIPs)
	f = f.addrs(s.LoadBalancerIPs)
	f = f.prefixes(s.LoadBalancerSourceRanges)
	f = f.uint(uint64(s.InternalTrafficPolicy))
	f = f.uint(uint64(s.ExternalTrafficPolicy))
	f = f.uint(uint64(s.SessionAffinityTimeout))
	if s.HealthCheck != nil {
		f = f.uint(uint64(s.HealthCheck.NodePort))
	} else {
		f = f.uint(0)
	}
	f = f.uint(uint64(len(s.Ports)))
	for _, p := range s.Ports {
		f = f.text(p.Name)
		f = f.uint(uint64(p.Protocol))
		f = f.uint(uint64(p.Port))
		f = f.uint(uint64(p.NodePort))
		f = f.text(p.AppProtocol)
		f = f.text(p.TargetPort)
		for _, routes := range []model.Routes{p.RoutesIPv4, p.RoutesIPv6} {
			for _, r := range []model.Route{routes.ClusterIP, routes.External, routes.ExternalFromPod,
				routes.ExternalFromNode} {
				f = f.uint(uint64(r.Endpoints))
				f = f.uint(uint64(r.Masquerade))
				f = f.uint(uint64(r.Empty))
			}
		}
	}
	return f.sum("service")
}

func (f fields) endpoint(e *model.Endpoint) fields {
	f = f.name(e.Port.Service)
	f = f.text(e.Port.Port)
	f = f.uint(uint64(e.Port.Protocol))
	f = f.addr(e.Target.Addr())
	f = f.uint(uint64(e.Target.Port()))
	f = f.text(e.Node)
	f = f.uint(uint64(e.Sets))
	for _, on := range []bool{e.Local, e.Ready, e.Serving, e.Terminating} {
		f = f.bool(on)
	}
	if e.Details.IsZero() {
		return append(f, make([]byte, 8)...) // the lengths of what follows
	}
	d := e.Details.Get()
	for _, s := range []string{d.TargetRef.Kind, d.TargetRef.Namespace, d.TargetRef.Name, d.TargetRef.UID, d.Hostname,
		d.Zone} {
		f = f.text(s)
	}
	return f.texts(d.NodeHints).texts(d.ZoneHints)
}

func endpointDigest(e *model.Endpoint) digest {
	var room [typicalFields]byte
	f := fields(room[:0])
	f = f.endpoint(e)
	return f.sum("endpoint")
}

func partDigest(name model.ServiceName, p *localstate.NodePart) digest {
	var room [typicalFields]byte
	f := fields(room[:0])
	f = f.name(name)
	f = f.uint(uint64(p.LocalEndpoints[0]))
	f = f.uint(uint64(p.LocalEndpoints[1]))
	f = f.uint(uint64(len(p.Unselected)))
	for _, u := range p.Unselected {
		f = f.text(u.Port)
		f = f.uint(uint64(u.Protocol))
		f = f.uint(uint64(u.Family))
	}
	f = f.uint(uint64(len(p.Endpoints)))
	for _, e := range p.Endpoints {
		f = f.endpoint(e)
	}
	return f.sum("part")
}

func nodeDigest(n *model.Node) digest {
	var room [typicalFields]byte
	f := fields(room[:0])
	f = f.text(n.Name)
	f = f.text(n.Zone)
	f = f.addrs(n.IPs)
	f = f.prefixes(n.PodCIDRs)
	f = f.prefixes(n.ServiceCIDRs)
	f = f.prefixes(n.LocalPods.CIDRs)
	f = f.text(n.LocalPods.Bridge)
	f = f.text(n.LocalPods.InterfacePrefix)
	f = f.bool(n.NotEligible)
	return f.sum("node")
}
