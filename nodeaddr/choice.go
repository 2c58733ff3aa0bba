package nodeaddr

import "sigs.k8s.io/kube-proxy-lib/internal/nodeports"

// Choice says which of a host's addresses serve node ports (S35): those in its CIDRs and, with Primary, the node's
// primary addresses. The zero value chooses all addresses. Validate checks it; All and Loopback say what it chooses
// whatever addresses the host has; Of computes the [Addresses] of a host.
type Choice = nodeports.Choice

// Addresses are the addresses of a host that serve node ports: the families of which all do, and a sorted list. The
// value is immutable. Of returns the addresses of one family.
type Addresses = nodeports.Addresses

// ParseError is the error of [Parse]: an [ElementError] for each invalid element, in their order.
type ParseError = nodeports.ParseError

// ElementError is what is wrong with one element of a list: its index and text, and whether it is a duplicate.
type ElementError = nodeports.ElementError

// Parse parses nodePortAddresses of kube-proxy's configuration: a list of CIDRs, which are parsed leniently (S5), and
// of the keywords "primary", "localhost" and "all". An empty list is the zero Choice. A keyword may occur once. If
// elements are invalid, the error is a [ParseError], and the choice has the others.
func Parse(list []string) (Choice, error) { return nodeports.Parse(list) }
