package dataplane

import (
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Options say which iptables New is to use. The zero value is IPv4's, of the variant that the node uses.
type Options struct {
	// Family is IPv4 if it is 0.
	Family model.Family
	// Variant is NFT or Legacy. Empty means the one that the node uses already, see Survey.
	Variant Variant
	// LockWait is how long a program may wait for the lock that iptables-legacy's programs share, in whole seconds. 0 means
	// 5 seconds. It does not matter for iptables-nft.
	LockWait time.Duration
}

// validate sets defaults, too.
func (o *Options) validate() error {
	if o.Family == 0 {
		o.Family = model.IPv4
	}
	switch {
	case o.Family != model.IPv4 && o.Family != model.IPv6:
		return fmt.Errorf("option Family %v: neither IPv4 nor IPv6", o.Family)
	case o.Variant != "" && o.Variant != NFT && o.Variant != Legacy:
		return fmt.Errorf("option Variant %q: neither %q nor %q nor empty", o.Variant, NFT, Legacy)
	case o.LockWait < 0 || o.LockWait%time.Second != 0:
		return fmt.Errorf("option LockWait %v: not a number of whole seconds", o.LockWait)
	}
	return nil
}

// lockSeconds is LockWait with its default.
func (o *Options) lockSeconds() int {
	if o.LockWait == 0 {
		return 5
	}
	return int(o.LockWait / time.Second)
}

// InUse is what Survey finds of a variant.
type InUse struct {
	Variant Variant
	// Hint: the kubelet has left a chain that says that this is the variant of the node.
	Hint bool
	// Rules is the number of rules in all tables.
	Rules int
}

// choose returns the variant that the node uses, "" if it uses none.
func choose(found []InUse) Variant {
	var best InUse
	for _, u := range found {
		if u.Hint && !best.Hint || u.Hint == best.Hint && u.Rules > best.Rules {
			best = u
		}
	}
	return best.Variant
}
