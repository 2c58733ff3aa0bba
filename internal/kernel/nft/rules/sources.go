package rules

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"

	"go4.org/netipx"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
)

// A list of source ranges (S26) has one chain, whatever the number of VIPs that it restricts and of services that have
// the same list. Each chain for traffic to such VIPs has another before it, which jumps to the list's chain:
//
//	restricted-LIST-cluster-3: jump sources-LIST, goto cluster-3
//	sources-LIST:              for each range: ip saddr RANGE return; then drop
//
// So the ranges are not multiplied by the VIPs and ports. LIST is a hash of the ranges: the content of these chains
// never changes. The chain of a long list looks the source up in a set instead, ranges-LIST. Short lists have none,
// because the kernel finds a set by comparing the names of all sets.

// maxSourceRules is how many prefixes a list may have that has a rule for each. docs/nft.md has the reasons.
const maxSourceRules = 32

// SourcesID identifies a list of source ranges by its content: lists with the same addresses have the same ID. "" is
// none.
type SourcesID string

// Chain returns the name of the list's chain.
func (id SourcesID) Chain() string { return "sources-" + string(id) }

const rangesPrefix = "ranges-"

// Set returns the name of the set that the list has if it is long.
func (id SourcesID) Set() string { return rangesPrefix + string(id) }

// RestrictedPrefix is the prefix of the names that Restricted returns; the ID follows, which has no '-'.
const RestrictedPrefix = "restricted-"

// Restricted returns the name of the chain that goes to another with packets from the list's sources only.
func (id SourcesID) Restricted(chain string) string {
	return RestrictedPrefix + string(id) + "-" + chain
}

// RestrictedChain returns the chain that Restricted names.
func (id SourcesID) RestrictedChain(chain string) Chain {
	return NewChain(id.Restricted(chain), Rule(dp.Jump{Chain: id.Chain()}), Rule(dp.Goto{Chain: chain}))
}

// RangesSet returns the set of source ranges with a name, nil if the name is another's.
func RangesSet(name string) *dp.Set {
	if !strings.HasPrefix(name, rangesPrefix) {
		return nil
	}
	return &dp.Set{Name: name, Key: []dp.Field{dp.SourceAddr}, Interval: true}
}

// Sources is a list of source ranges.
type Sources struct {
	ID  SourcesID
	set *netipx.IPSet
}

// NewSources returns the list of the addresses in all prefixes, which are of one family. They may overlap.
func NewSources(prefixes []netip.Prefix) *Sources {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	s := &Sources{}
	s.set, _ = b.IPSet() // an error is about a prefix that is invalid
	h := sha256.New()
	for _, e := range s.ranges() {
		h.Write([]byte(e.Key))
	}
	s.ID = SourcesID(strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)[:10])))
	return s
}

// Chain returns the list's chain, which returns with packets from its sources and drops others, and the set that the
// chain refers to, with its elements, sorted. A short list has no set.
func (s *Sources) Chain() (ch Chain, set *dp.Set, ranges []dp.Element) {
	ch = NewChain(s.ID.Chain())
	prefixes := s.set.Prefixes()
	if len(prefixes) > maxSourceRules {
		set = RangesSet(s.ID.Set())
		ch.Rules = []dp.Rule{Rule(dp.InSet{Set: set}, dp.Return{}), Rule(dp.Drop{})}
		return ch, set, s.ranges()
	}
	for _, p := range prefixes {
		if p.Bits() == 0 {
			return NewChain(ch.Name, Rule(dp.Return{})), nil, nil
		}
		ch.Rules = append(ch.Rules, Rule(dp.InPrefix{Field: dp.SourceAddr, Prefix: p}, dp.Return{}))
	}
	ch.Rules = append(ch.Rules, Rule(dp.Drop{}))
	return ch, nil, nil
}

// ranges returns the elements of the list's set. They neither overlap nor touch.
func (s *Sources) ranges() []dp.Element {
	ranges := s.set.Ranges()
	list := make([]dp.Element, len(ranges))
	for i, r := range ranges {
		var b [32]byte
		list[i].Key = string(dp.AppendAddr(dp.AppendAddr(b[:0], r.From()), r.To()))
	}
	return list
}

// SourceLists remembers the lists of slices of prefixes, which must not change: the ports of a service have the same
// slice.
type SourceLists map[*netip.Prefix]*Sources

// Of returns the list of a slice that is not empty.
func (l SourceLists) Of(prefixes []netip.Prefix) *Sources {
	s := l[&prefixes[0]]
	if s == nil {
		s = NewSources(prefixes)
		l[&prefixes[0]] = s
	}
	return s
}
