package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// DigestVersion is the version of the digests that this package computes. It changes whenever what is hashed changes:
// peers with different versions do not compare digests.
const DigestVersion = 1

// Digest is the sum, modulo 2^128, of hashes of everything in a state: for each service, endpoint, node and part, the
// first 16 bytes of the SHA-256 of its fields; strings and lists are preceded by their lengths. So a digest depends on
// the meaning of a state, not on its history or encoding, and an update costs what changed. It protects against
// accidents only: somebody who can create very many objects could find two states with the same digest. A client that
// resumes would then keep a stale state.
type Digest struct{ hi, lo uint64 }

// Add returns the sum of two digests.
func (d Digest) Add(o Digest) Digest {
	lo, carry := bits.Add64(d.lo, o.lo, 0)
	hi, _ := bits.Add64(d.hi, o.hi, carry)
	return Digest{hi, lo}
}

// Sub subtracts a digest from a sum.
func (d Digest) Sub(o Digest) Digest {
	lo, borrow := bits.Sub64(d.lo, o.lo, 0)
	hi, _ := bits.Sub64(d.hi, o.hi, borrow)
	return Digest{hi, lo}
}

// Bytes returns the digest as it is sent.
func (d Digest) Bytes() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, digestSize), d.hi), d.lo)
}

const digestSize = 16

// ParseDigest is the reverse of Bytes.
func ParseDigest(b []byte) (Digest, bool) {
	if len(b) != digestSize {
		return Digest{}, false
	}
	return Digest{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, true
}

// NumBuckets is the number of groups of services that have a digest each.
const NumBuckets = 256

// Buckets are the digests of the groups of services in a class.
type Buckets [NumBuckets]Digest

// BucketOf returns the bucket of a service.
func BucketOf(name model.ServiceName) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(validText(name.String()))) // never fails
	return int(h.Sum32() % NumBuckets)
}

// Root returns the sum of all buckets.
func (b *Buckets) Root() Digest {
	var sum Digest
	for _, d := range b {
		sum = sum.Add(d)
	}
	return sum
}

// Bytes returns the buckets as they are sent.
func (b *Buckets) Bytes() []byte {
	var out []byte
	for _, d := range b {
		out = append(out, d.Bytes()...)
	}
	return out
}

// ParseBuckets is the reverse of Buckets.Bytes.
func ParseBuckets(in []byte) (*Buckets, bool) {
	if len(in) != NumBuckets*digestSize {
		return nil, false
	}
	var b Buckets
	for i := range b {
		b[i], _ = ParseDigest(in[i*digestSize : (i+1)*digestSize])
	}
	return &b, true
}

// Change updates the buckets with a change between two snapshots.
func (b *Buckets) Change(c sink.Change) { b.Delta(DeltaOf(c)) }

// Delta updates the buckets. The cost is that of what changed in the service.
func (b *Buckets) Delta(c Delta) {
	d := &b[BucketOf(c.Name)]
	*d = changed(*d, c)
}

// changed returns the digest of a sum after a change of one service in it.
func changed(d Digest, c Delta) Digest {
	if c.Old != nil {
		d = d.Sub(serviceDigest(c.Old))
	}
	if c.New != nil {
		d = d.Add(serviceDigest(c.New))
	}
	for _, e := range c.Endpoints {
		if e.Old != nil {
			d = d.Sub(endpointDigest(e.Old))
		}
		if e.New != nil {
			d = d.Add(endpointDigest(e.New))
		}
	}
	return d
}

// ServiceDigests returns the digests of the services in some buckets.
func ServiceDigests(s *sink.Snapshot, wanted []uint32) map[model.ServiceName]Digest {
	return new(KnownDigests).ServiceDigests(s, wanted)
}

// ServiceDigests is like the function, and hashes only what is not known yet.
func (k *KnownDigests) ServiceDigests(s *sink.Snapshot, wanted []uint32) map[model.ServiceName]Digest {
	var in [NumBuckets]bool
	for _, b := range wanted {
		in[b%NumBuckets] = true
	}
	out := map[model.ServiceName]Digest{}
	for e := range s.Services() {
		if in[BucketOf(e.Service.Name)] {
			out[e.Service.Name] = k.of(e)
		}
	}
	return out
}

// KnownDigests remembers the digests of services, so that a changed service is hashed only where it changed. The zero
// value is empty. It is safe for concurrent use: a caller waits for a digest that another one is computing.
type KnownDigests struct {
	mu  sync.Mutex
	all map[model.ServiceName]knownDigest
}

type knownDigest struct {
	entry  *sink.ServiceEntry
	digest Digest
}

// of returns the digest of a service with its endpoints.
func (k *KnownDigests) of(e *sink.ServiceEntry) Digest {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.all[e.Service.Name]
	if known.entry != e {
		d := changed(known.digest, DeltaOf(sink.Change{Name: e.Service.Name, Old: known.entry, New: e}))
		known = knownDigest{e, d}
		if k.all == nil {
			k.all = map[model.ServiceName]knownDigest{}
		}
		k.all[e.Service.Name] = known
	}
	return known.digest
}

// OwnDigest returns the digest of a node and its parts.
func OwnDigest(node *model.Node, parts map[model.ServiceName]*localstate.NodePart) Digest {
	d := NodeDigest(node)
	for name, p := range parts {
		d = d.Add(PartDigest(name, p))
	}
	return d
}

// DigestMessage returns the message with the digests of both layers.
func DigestMessage(shared, own Digest) *remotev1.Digest {
	return &remotev1.Digest{Version: DigestVersion, Shared: shared.Bytes(), Own: own.Bytes()}
}

// fields is what is hashed: one field after the other, each in a fixed place and with its length if that varies, so no
// field can be mistaken for another. The methods append, which keeps the bytes on the stack.
type fields []byte

// typicalFields is enough for most values, so that the buffer does not grow.
const typicalFields = 512

func (f fields) uint(n uint64) fields { return binary.AppendUvarint(f, n) }

func (f fields) text(s string) fields { return f.raw(validText(s)) }

func (f fields) raw(s string) fields { return append(f.uint(uint64(len(s))), s...) }

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
	return f.raw(string(a.AsSlice()))
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
	slices.SortFunc(keys, func(a, b string) int { return strings.Compare(validText(a), validText(b)) })
	for _, k := range keys {
		f = f.text(k).text(m[k])
	}
	return f
}

func (f fields) name(n model.ServiceName) fields { return f.text(n.Namespace).text(n.Name) }

func (f fields) sum(kind string) Digest {
	h := sha256.Sum256(f.text(kind))
	d, _ := ParseDigest(h[:digestSize])
	return d
}

func serviceDigest(s *model.Service) Digest {
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
		for _, routes := range []model.Routes{p.Routes.IPv4, p.Routes.IPv6} {
			for _, r := range []model.Route{routes.ClusterIP, routes.External, routes.ExternalFromPod,
				routes.ExternalFromNode} {
				f = f.uint(uint64(r.Endpoints))
				f = f.uint(uint64(r.Masquerade))
				f = f.uint(uint64(r.Empty))
			}
		}
	}
	// At the end, and only where it is set: a service without it has the same digest at peers that do not know the field,
	// and a client that does not know the field compares no digests once it has received it.
	for i, p := range s.Ports {
		if p.TooManyEndpoints {
			f = f.uint(uint64(i))
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
		return append(f, make([]byte, 8)...) // the empty texts and lists
	}
	d := e.Details.Get()
	for _, s := range []string{d.TargetRef.Kind, d.TargetRef.Namespace, d.TargetRef.Name, d.TargetRef.UID, d.Hostname,
		d.Zone} {
		f = f.text(s)
	}
	return f.texts(d.NodeHints).texts(d.ZoneHints)
}

func endpointDigest(e *model.Endpoint) Digest {
	var room [typicalFields]byte
	f := fields(room[:0])
	f = f.endpoint(e)
	return f.sum("endpoint")
}

// PartDigest returns the digest of a node's part in a service.
func PartDigest(name model.ServiceName, p *localstate.NodePart) Digest {
	var room [typicalFields]byte
	f := fields(room[:0])
	f = f.name(name)
	f = f.uint(uint64(p.LocalEndpoints.IPv4))
	f = f.uint(uint64(p.LocalEndpoints.IPv6))
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

// NodeDigest returns the digest of a node.
func NodeDigest(n *model.Node) Digest {
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
