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
	if Escape(comment, maxComment) != comment {
		return fmt.Errorf("nft cannot print the comment %q: %w", comment, syscall.EINVAL)
	}
	return nil
}

// refer counts the references of a rule.
func (t *fakeTable) refer(r *Rule, by int) {
	for _, s := range r.Statements {
		if s := setOf(s); s != nil {
			t.set(s.Name).used += by
		}
		if name := chainOf(s); name != "" {
			t.chain(name).used += by
		}
	}
}

func setOf(s Statement) *Set {
	switch s := s.(type) {
	case InSet:
		return s.Set
	case Refresh:
		return s.Set
	case GotoMap:
		return s.Map
	case DNATMap:
		return s.Map
	}
	return nil
}

func chainOf(s Statement) string {
	switch s := s.(type) {
	case Goto:
		return s.Chain
	case Jump:
		return s.Chain
	}
	return ""
}

func (t *fakeTable) checkRule(r *Rule) error {
	if err := checkComment(r.Comment); err != nil {
		return err
	}
	if len(r.Statements) == 0 {
		return fmt.Errorf("the rule is empty: %w", syscall.EINVAL)
	}
	protocol := false
	for i, s := range r.Statements {
		if name := chainOf(s); name != "" {
			if c := t.chain(name); c == nil || c.Hook != NoHook {
				return fmt.Errorf("no such chain to go to: %s: %w", name, syscall.ENOENT)
			}
		}
		if err := t.checkSetUse(s); err != nil {
			return err
		}
		if isVerdict(s) && i != len(r.Statements)-1 {
			return fmt.Errorf("statements follow a verdict: %w", syscall.EINVAL)
		}
		needsProtocol := false
		switch s := s.(type) {
		case IsProtocol:
			protocol = true
		case DNAT:
			needsProtocol = true
		case DNATMap:
			needsProtocol = !slices.Contains(s.Map.Key, DestinationPort)
		}
		if needsProtocol && !protocol {
			return fmt.Errorf("dnat to a port without a protocol: %w", syscall.EINVAL)
		}
	}
	return nil
}

func isVerdict(s Statement) bool {
	switch s.(type) {
	case Goto, Jump, Drop, Reject, DNAT, DNATMap, Masquerade, GotoMap:
		return true
	}
	return false
}

func (t *fakeTable) checkSetUse(s Statement) error {
	used := setOf(s)
	if used == nil {
		return nil
	}
	set := t.set(used.Name)
	if set == nil {
		return fmt.Errorf("no such set: %s: %w", used.Name, syscall.ENOENT)
	}
	ok := false
	switch s := s.(type) {
	case InSet:
		ok = !set.Verdicts && set.Value == nil
	case Refresh:
		ok = set.Dynamic && s.Timeout > 0
	case GotoMap:
		ok = set.Verdicts
	case DNATMap:
		ok = slices.Equal(set.Value, []Field{DestinationAddr, DestinationPort}) && s.N > 0 &&
			slices.Contains(set.Key, Random)
	}
	if !ok || !slices.Equal(used.Key, set.Key) {
		return fmt.Errorf("the set %s cannot be used so: %w", used.Name, syscall.EINVAL)
	}
	return nil
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
			var targets []string
			switch s := s.(type) {
			case Reject:
				if base.Hook == Postrouting {
					return fmt.Errorf("chain %s is reached from postrouting: %w", c.Name, syscall.EOPNOTSUPP)
				}
			case DNAT, DNATMap:
				if base.Filter || base.Hook != Prerouting && base.Hook != Output {
					return fmt.Errorf("dnat in %s is reached from %s: %w", c.Name, base.Name, syscall.EOPNOTSUPP)
				}
			case Masquerade:
				if base.Filter || base.Hook != Postrouting {
					return fmt.Errorf("masquerade in %s is reached from %s: %w", c.Name, base.Name, syscall.EOPNOTSUPP)
				}
			case GotoMap:
				for _, e := range t.set(s.Map.Name).elements {
					targets = append(targets, e.Value)
				}
			default:
				if name := chainOf(s); name != "" {
					targets = []string{name}
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

func (a *fakeApply) addElements(t *fakeTable, o *op) error {
	s, err := a.elementsOf(t, o)
	if err != nil {
		return err
	}
	size := fieldsSize(a.key.Family, s.Key)
	keySize := size
	if s.Interval {
		keySize = 2 * size
	}
	for _, e := range o.elements {
		switch {
		case len(e.Key) != keySize:
			return fmt.Errorf("a key of %d bytes, not %d: %w", len(e.Key), keySize, syscall.EINVAL)
		case s.Interval && e.Key[:size] > e.Key[size:]:
			return fmt.Errorf("a range that ends before it begins: %w", syscall.EINVAL)
		case !s.Verdicts && len(e.Value) != fieldsSize(a.key.Family, s.Value):
			return fmt.Errorf("a value of %d bytes: %w", len(e.Value), syscall.EINVAL)
		}
		if err := checkComment(e.Comment); err != nil {
			return err
		}
		if _, ok := s.elements[e.Key]; ok || s.overlaps(e, size) {
			return fmt.Errorf("element %s: %w", s.elementText(a.key.Family, e), syscall.EEXIST)
		}
		if s.Verdicts {
			c := t.chain(e.Value)
			if c == nil || c.Hook != NoHook {
				return fmt.Errorf("no such chain to go to: %s: %w", e.Value, syscall.ENOENT)
			}
			c.used++
			a.validate = true
		}
		s.elements[e.Key] = e
		a.undo = append(a.undo, func() {
			delete(s.elements, e.Key)
			if s.Verdicts {
				t.chain(e.Value).used--
			}
		})
	}
	return nil
}

func (a *fakeApply) deleteElements(t *fakeTable, o *op) error {
	s, err := a.elementsOf(t, o)
	if err != nil {
		return err
	}
	for _, e := range o.elements {
		old, ok := s.elements[e.Key]
		if !ok {
			return fmt.Errorf("element %s: %w", s.elementText(a.key.Family, e), syscall.ENOENT)
		}
		delete(s.elements, e.Key)
		if s.Verdicts {
			t.chain(old.Value).used--
		}
		a.undo = append(a.undo, func() {
			s.elements[e.Key] = old
			if s.Verdicts {
				t.chain(old.Value).used++
			}
		})
	}
	return nil
}

func (a *fakeApply) elementsOf(t *fakeTable, o *op) (*fakeSet, error) {
	s := t.set(o.name)
	switch {
	case s == nil:
		return nil, fmt.Errorf("no such set: %w", syscall.ENOENT)
	case definitionOf(&s.Set, a.key.Family) != definitionOf(o.set, a.key.Family):
		return nil, fmt.Errorf("the set is another: %w", syscall.EINVAL)
	}
	return s, nil
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
