package dataplane

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// maxName is the maximum length of a name in nft. The kernel allows 255 bytes.
const maxName = 127

// checkName checks that nft can read a name: a letter, and then letters, digits and a few other characters.
func checkName(name, comment string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if name == "" || len(name) > maxName || !strings.Contains(letters, name[:1]) ||
		strings.Trim(name, letters+"0123456789/-_.") != "" {
		return fmt.Errorf("not a name: %q: %w", name, syscall.EINVAL)
	}
	return checkComment(comment)
}

func checkComment(comment string) error {
	if Comment(comment) != comment {
		return fmt.Errorf("nft cannot print the comment %q: %w", comment, syscall.EINVAL)
	}
	return nil
}

// use is what the kernel checks of a statement.
type use struct {
	chain         string // that it goes to
	set           *Set   // that it looks up
	fits          bool   // the set is of the right kind
	isVerdict     bool   // no statement may follow
	needsProtocol bool   // an IsProtocol has to precede
	// from reports whether packets of a base chain may get here; nil: those of any.
	from func(base *Chain) bool
}

func useOf(s Statement) use {
	nat := func(hooks ...Hook) func(*Chain) bool {
		return func(base *Chain) bool { return !base.Filter && slices.Contains(hooks, base.Hook) }
	}
	switch s := s.(type) {
	case InSet:
		return use{set: s.Set, fits: !s.Set.Verdicts && s.Set.Value == nil}
	case Refresh:
		return use{set: s.Set, fits: s.Set.Dynamic && s.Timeout > 0}
	case GotoMap:
		return use{set: s.Map, fits: s.Map.Verdicts, isVerdict: true}
	case DNATMap:
		return use{set: s.Map, fits: slices.Equal(s.Map.Value, []Field{DestinationAddr, DestinationPort}) && s.N > 0 &&
			slices.Contains(s.Map.Key, Random), isVerdict: true,
			needsProtocol: !slices.Contains(s.Map.Key, DestinationPort), from: nat(Prerouting, Output)}
	case DNAT:
		return use{isVerdict: true, needsProtocol: true, from: nat(Prerouting, Output)}
	case KeepDestination:
		return use{isVerdict: true, from: nat(Prerouting, Output)}
	case Masquerade:
		return use{isVerdict: true, from: nat(Postrouting)}
	case Goto:
		return use{isVerdict: true, chain: s.Chain}
	case Jump:
		return use{isVerdict: true, chain: s.Chain}
	case Return, Drop:
		return use{isVerdict: true}
	case Reject:
		return use{isVerdict: true, from: func(base *Chain) bool { return base.Hook != Postrouting }}
	}
	return use{}
}

func (t *fakeTable) checkRule(r *Rule) error {
	if len(r.Statements) == 0 {
		return fmt.Errorf("the rule is empty: %w", syscall.EINVAL)
	}
	protocol := false
	for i, s := range r.Statements {
		u := useOf(s)
		if _, is := s.(IsProtocol); is {
			protocol = true
		}
		if u.chain != "" {
			if err := t.checkTarget(u.chain); err != nil {
				return err
			}
		}
		if u.set != nil {
			set := t.set(u.set.Name)
			if set == nil {
				return fmt.Errorf("no such set: %s: %w", u.set.Name, syscall.ENOENT)
			}
			if !u.fits || definitionOf(&set.Set, t.key.Family) != definitionOf(u.set, t.key.Family) {
				return fmt.Errorf("the set %s cannot be used like this: %w", u.set.Name, syscall.EINVAL)
			}
		}
		if u.isVerdict && i != len(r.Statements)-1 {
			return fmt.Errorf("statements follow a verdict: %w", syscall.EINVAL)
		}
		if u.needsProtocol && !protocol {
			return fmt.Errorf("dnat to a port without a protocol: %w", syscall.EINVAL)
		}
	}
	return checkComment(r.Comment)
}

// validate follows all jumps from the base chains, as the kernel does after rules have been added: there must be no
// loop, and NAT statements must be where that kind of NAT is possible.
func (t *fakeTable) validate() error {
	for _, c := range t.chains {
		if c.Hook != NoHook {
			if err := t.walk(c, &c.Chain, nil, map[string]bool{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *fakeTable) walk(c *fakeChain, base *Chain, path []string, done map[string]bool) error {
	if slices.Contains(path, c.Name) {
		return fmt.Errorf("chain %s leads back to itself: %w", c.Name, syscall.ELOOP)
	}
	if done[c.Name] {
		return nil
	}
	path = append(path, c.Name)
	for i := range c.rules {
		for _, s := range c.rules[i].Statements {
			u := useOf(s)
			if u.from != nil && !u.from(base) {
				return fmt.Errorf("%T in chain %s is reached from %s: %w", s, c.Name, base.Name, syscall.EOPNOTSUPP)
			}
			var targets []string
			if u.chain != "" {
				targets = []string{u.chain}
			}
			if u.set != nil && u.set.Verdicts {
				for _, e := range t.set(u.set.Name).elements {
					targets = append(targets, e.Value)
				}
			}
			for _, name := range targets {
				if err := t.walk(t.chain(name), base, path, done); err != nil {
					return err
				}
			}
		}
	}
	done[c.Name] = true
	return nil
}

// changeElements adds or deletes elements.
func (t *fakeTable) changeElements(o *op) error {
	s := t.set(o.name)
	switch {
	case s == nil:
		return fmt.Errorf("no such set: %w", syscall.ENOENT)
	case definitionOf(&s.Set, t.key.Family) != definitionOf(o.set, t.key.Family):
		return fmt.Errorf("the set has another definition: %w", syscall.EINVAL)
	case o.timeout > 0 && !s.Dynamic:
		return fmt.Errorf("elements of the set do not time out: %w", syscall.EINVAL)
	}
	for _, e := range o.elements {
		old, there := s.elements[e.Key]
		switch {
		case o.verb == addElements:
			if err := t.checkElement(s, e); err != nil {
				return err
			}
			s.elements[e.Key] = e
			if o.timeout > 0 {
				s.timeouts[e.Key] = o.timeout
			}
			t.countElement(s, e, 1)
		case there:
			delete(s.elements, e.Key)
			delete(s.timeouts, e.Key)
			t.countElement(s, old, -1)
		default:
			return fmt.Errorf("element %s: %w", s.elementText(t.key.Family, e), syscall.ENOENT)
		}
	}
	return nil
}

// checkElement checks an element that is to be added.
func (t *fakeTable) checkElement(s *fakeSet, e Element) error {
	size := fieldsSize(t.key.Family, s.Key)
	keySize := size
	if s.Interval {
		keySize = 2 * size
	}
	switch {
	case len(e.Key) != keySize:
		return fmt.Errorf("a key of %d bytes, not %d: %w", len(e.Key), keySize, syscall.EINVAL)
	case s.Interval && e.Key[:size] > e.Key[size:]:
		return fmt.Errorf("a range that ends before it begins: %w", syscall.EINVAL)
	case !s.Verdicts && len(e.Value) != fieldsSize(t.key.Family, s.Value):
		return fmt.Errorf("a value of %d bytes: %w", len(e.Value), syscall.EINVAL)
	}
	if _, there := s.elements[e.Key]; there || s.overlaps(e, size) {
		return fmt.Errorf("element %s: %w", s.elementText(t.key.Family, e), syscall.EEXIST)
	}
	if s.Verdicts {
		if err := t.checkTarget(e.Value); err != nil {
			return err
		}
	}
	return checkComment(e.Comment)
}

// checkTarget checks that there is a chain to go to.
func (t *fakeTable) checkTarget(name string) error {
	if c := t.chain(name); c == nil || c.Hook != NoHook {
		return fmt.Errorf("no such chain: %s: %w", name, syscall.ENOENT)
	}
	return nil
}

// overlaps reports whether the range of an element overlaps that of another.
func (s *fakeSet) overlaps(e Element, size int) bool {
	if !s.Interval {
		return false
	}
	for _, o := range s.elements {
		if e.Key[:size] <= o.Key[size:] && o.Key[:size] <= e.Key[size:] {
			return true
		}
	}
	return false
}
