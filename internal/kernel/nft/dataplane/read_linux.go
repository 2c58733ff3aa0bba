package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ReadTable implements [Interface]. It repeats the reading until the ruleset did not change meanwhile.
func (n *Netlink) ReadTable(ctx context.Context, key TableKey, elements func(*TableSet) bool) (*Table, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 20 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		before, err := n.conn.Generation()
		if err != nil {
			return nil, err
		}
		// Changes reported from here on count as later than the reading. Late reports only cause a needless check.
		n.monitor.waitFor(ctx, before)
		n.monitor.seenNow(key)
		t, err := n.readTable(ctx, key, elements)
		if errors.Is(err, nfnetlink.ErrInterrupted) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading table %v: %w", key, err)
		}
		after, err := n.conn.Generation()
		if err != nil {
			return nil, err
		}
		if before == after || n.monitor.waitFor(ctx, after) && !n.monitor.drifted(key) {
			n.generation = after
			return t, nil
		}
	}
	return nil, fmt.Errorf("reading table %v: %w", key, nfnetlink.ErrInterrupted)
}

func (n *Netlink) readTable(ctx context.Context, key TableKey, elements func(*TableSet) bool) (*Table, error) {
	t := &Table{Key: key, Chains: map[string]*TableChain{}, Sets: map[string]*TableSet{}}
	found := false
	err := n.list(unix.NFT_MSG_GETTABLE, key.Family, func(m nfnetlink.Message) error {
		if a := attributesOf(m); a.text(unix.NFTA_TABLE_NAME) == key.Name {
			found = true
			if a.number(unix.NFTA_TABLE_FLAGS) == 0 { // a dormant or owned table is not ours
				t.Comment = readComment(a.get(nftaTableUserdata), userdata.TypeComment)
			}
		}
		return nil
	})
	if err != nil || !found {
		return nil, err
	}
	if err := n.readChains(t); err != nil {
		return nil, err
	}
	var ids []RuleID // of one chain: the memory is reused for the next
	for _, c := range t.Chains {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if ids, err = n.readRules(key, c.Name, ids[:0]); err != nil {
			return nil, err
		}
		c.Rules = slices.Clone(ids)
	}
	counts, err := n.readSets(t)
	if err != nil {
		return nil, err
	}
	for _, s := range t.Sets {
		if s.Dynamic || elements != nil && !elements(s) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := n.readElements(key, s, counts[s.Name]); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// list asks for a list. names are the first attributes of the request: the table, and the chain or set in it.
//
// The kernel reports a list as interrupted if any table was changed meanwhile. The list of one chain or set is still
// complete unless this table was changed, which ReadTable checks itself: on a node where others keep changing their
// rules, thousands of chains could not be read otherwise.
func (n *Netlink) list(typ uint16, f model.Family, each func(nfnetlink.Message) error, names ...string) error {
	w := n.conn.Request(unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_DUMP, nfnetlink.Proto(f))
	for i, name := range names {
		w.Text(nftaTable+uint16(i), name)
	}
	w.End()
	err := n.conn.Dump(w, each)
	if len(names) > 1 && errors.Is(err, nfnetlink.ErrInterrupted) {
		return nil
	}
	return err
}

// attributes are those of a message, or those nested in an attribute.
type attributes []byte

func attributesOf(m nfnetlink.Message) attributes { return m.Data[min(4, len(m.Data)):] }

// get returns the value of an attribute, nil if there is none of the type.
func (a attributes) get(typ uint16) attributes {
	for t, v := range nfnetlink.Attributes(a) {
		if t == typ {
			return v
		}
	}
	return nil
}

func (a attributes) text(typ uint16) string { return nfnetlink.CString(a.get(typ)) }

func (a attributes) number(typ uint16) uint32 { return nfnetlink.Uint32(a.get(typ)) }

func (n *Netlink) readChains(t *Table) error {
	return n.list(unix.NFT_MSG_GETCHAIN, t.Key.Family, func(m nfnetlink.Message) error {
		a := attributesOf(m)
		c := &TableChain{Chain: Chain{
			Name:    a.text(unix.NFTA_CHAIN_NAME),
			Comment: readComment(a.get(nftaChainUserdata), userdata.TypeComment),
			Filter:  a.text(unix.NFTA_CHAIN_TYPE) == "filter"}}
		if hook := a.get(unix.NFTA_CHAIN_HOOK); hook != nil {
			c.Hook = Hook(hook.number(unix.NFTA_HOOK_HOOKNUM) + 1)
			c.Priority = int32(hook.number(unix.NFTA_HOOK_PRIORITY))
		}
		if policy := a.get(unix.NFTA_CHAIN_POLICY); policy != nil && nfnetlink.Uint32(policy) != nfAccept {
			c.Hook = ^NoHook // like none of this package's
		}
		if a.text(unix.NFTA_CHAIN_TABLE) == t.Key.Name {
			t.Chains[c.Name] = c
		}
		return nil
	})
}

// readRules reads the rules of one chain. To continue a list of all rules of a table, the kernel counts them from the
// start for each 32 KiB: 4,000 services with affinity took 6 to 8 s that way.
func (n *Netlink) readRules(table TableKey, chain string, ids []RuleID) ([]RuleID, error) {
	err := n.list(unix.NFT_MSG_GETRULE, table.Family, func(m nfnetlink.Message) error {
		ids = append(ids, readRuleID(attributesOf(m).get(unix.NFTA_RULE_USERDATA)))
		return nil
	}, table.Name, chain)
	return ids, err
}

// readSets also returns how many elements the sets have, if the kernel reports that (seen with Linux 6.18).
func (n *Netlink) readSets(t *Table) (counts map[string]uint32, err error) {
	counts = map[string]uint32{}
	return counts, n.list(unix.NFT_MSG_GETSET, t.Key.Family, func(m nfnetlink.Message) error {
		a := attributesOf(m)
		d := definition{
			family:   t.Key.Family,
			flags:    a.number(unix.NFTA_SET_FLAGS),
			keyType:  withMarks(a.number(unix.NFTA_SET_KEY_TYPE)),
			keyLen:   a.number(unix.NFTA_SET_KEY_LEN),
			dataType: a.number(unix.NFTA_SET_DATA_TYPE),
			dataLen:  a.number(unix.NFTA_SET_DATA_LEN),
			size:     a.get(unix.NFTA_SET_DESC).number(unix.NFTA_SET_DESC_SIZE),
			each:     a.get(nftaSetExpr).text(unix.NFTA_EXPR_NAME),
		}
		if d.flags&setDynamic != 0 && d.size == maxDynamic {
			d.size = 0 // the kernel's choice, made when the first rule refers to the set
		}
		if d.dataType == verdictType {
			d.dataLen = 0 // chosen by the kernel
		}
		if a.text(unix.NFTA_SET_TABLE) == t.Key.Name && d.flags&setAnonymous == 0 {
			name := a.text(unix.NFTA_SET_NAME)
			comment := readComment(a.get(unix.NFTA_SET_USERDATA), userdata.NFTNL_UDATA_SET_COMMENT)
			t.Sets[name] = &TableSet{Name: name, Comment: comment, Size: d.size, Dynamic: d.flags&setDynamic != 0,
				definition: d}
			counts[name] = a.number(nftaSetCount)
		}
		return nil
	}, t.Key.Name)
}

// listElements asks for the elements of a set.
func (n *Netlink) listElements(key TableKey, set string, each func(attributes)) error {
	return n.list(unix.NFT_MSG_GETSETELEM, key.Family, func(m nfnetlink.Message) error {
		for _, v := range nfnetlink.Attributes(attributesOf(m).get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			each(v)
		}
		return nil
	}, key.Name, set)
}

func (n *Netlink) readElements(key TableKey, s *TableSet, count uint32) error {
	// A list is read in pieces, by the number of elements that were read before. If the kernel enlarges the hash table
	// between two (it does so a while after a big change), as many elements are listed twice as are left out.
	var seen map[string]bool
	if s.definition.flags&setInterval != 0 {
		return n.readRanges(key, s)
	}
	if s.Size == 0 {
		seen = make(map[string]bool, count)
	}
	s.Elements = slices.Grow(s.Elements, int(count))
	twice := false
	size := padded(int(s.definition.keyLen))
	err := n.listElements(key, s.Name, func(a attributes) {
		e := readElement(a)
		// For example "*", which this package cannot delete.
		s.foreign = s.foreign || padded(len(e.Key)) != size
		if seen != nil {
			twice = twice || seen[e.Key]
			seen[e.Key] = true
		}
		s.Elements = append(s.Elements, e)
	})
	if err == nil && twice {
		err = nfnetlink.ErrInterrupted
	}
	return err
}

// ReadDynamic implements [Interface].
func (n *Netlink) ReadDynamic(ctx context.Context, key TableKey, s *Set, each func(Element, time.Duration)) (
	complete bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	complete = true
	seen := map[string]bool{} // if one is listed twice, another one may be left out: see readElements
	err = n.listElements(key, s.Name, func(a attributes) {
		e := readElement(a)
		if seen[e.Key] {
			complete = false
			return
		}
		seen[e.Key] = true
		each(e, time.Duration(nfnetlink.Uint64(a.get(unix.NFTA_SET_ELEM_EXPIRATION)))*time.Millisecond)
	})
	if err != nil {
		return false, fmt.Errorf("reading set %s of table %v: %w", s.Name, key, err)
	}
	return complete, nil
}

// readRanges reads the elements of an interval set. A set made by nft may have one more element, the end of a range
// before the first value.
func (n *Netlink) readRanges(key TableKey, s *TableSet) error {
	type bound struct {
		key string
		end bool
	}
	var bounds []bound
	err := n.listElements(key, s.Name, func(a attributes) {
		bounds = append(bounds, bound{string(a.get(unix.NFTA_SET_ELEM_KEY).get(unix.NFTA_DATA_VALUE)),
			a.number(unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0})
	})
	slices.SortFunc(bounds, func(a, b bound) int {
		if a.key == b.key && a.end && !b.end {
			return -1
		}
		return strings.Compare(a.key, b.key)
	})
	size := int(s.definition.keyLen)
	first := ""
	for i, b := range bounds {
		switch {
		case len(b.key) != size || b.end == (first == "") && !(i == 0 && b.key == strings.Repeat("\x00", size)):
			s.foreign = true
			return err
		case !b.end:
			first = b.key
		case first != "":
			s.Elements = append(s.Elements, Element{Key: first + predecessor(b.key)})
			first = ""
		}
	}
	if first != "" {
		s.Elements = append(s.Elements, Element{Key: first + strings.Repeat("\xff", size)})
	}
	return err
}

// predecessor returns the next smaller key. There is one.
func predecessor(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return string(b)
}

func readElement(a attributes) Element {
	key := func(typ uint16) string { return string(a.get(typ).get(unix.NFTA_DATA_VALUE)) }
	value := a.get(unix.NFTA_SET_ELEM_DATA)
	chain := value.get(unix.NFTA_DATA_VERDICT).get(unix.NFTA_VERDICT_CHAIN)
	return Element{
		Key:     key(unix.NFTA_SET_ELEM_KEY),
		Value:   string(value.get(unix.NFTA_DATA_VALUE)) + nfnetlink.CString(chain), // it has one of these
		Comment: readComment(a.get(unix.NFTA_SET_ELEM_USERDATA), userdata.TypeComment),
	}
}
