package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ReadTable implements [Interface]. It reads until nobody changed the ruleset in between.
func (n *Netlink) ReadTable(ctx context.Context, key TableKey, elements func(*Set) bool) (*Table, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 20 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n.monitor.watch(key)
		before, err := n.conn.Generation()
		if err != nil {
			return nil, err
		}
		// What is reported from here on comes on top of what is read. Reports that are late only cause a needless look.
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

func (n *Netlink) readTable(ctx context.Context, key TableKey, elements func(*Set) bool) (*Table, error) {
	t := &Table{Key: key, Chains: map[string]*TableChain{}, Sets: map[string]*TableSet{}}
	w := n.request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, key.Family)
	w.End()
	found := false
	err := n.conn.Dump(w, func(m nfnetlink.Message) error {
		var name, comment string
		var flags uint32
		defer func() {
			if flags != 0 && name == key.Name {
				t.Comment = "" // dormant: not a table that this package would have made
			}
		}()
		for typ, v := range m.Attributes() {
			switch typ {
			case unix.NFTA_TABLE_NAME:
				name = nfnetlink.CString(v)
			case unix.NFTA_TABLE_FLAGS:
				flags = nfnetlink.Uint32(v)
			case nftaTableUserdata:
				comment = nfnetlink.CString(readUserdata(v, userdata.TypeComment))
			}
		}
		if name == key.Name {
			found, t.Comment = true, comment
		}
		return nil
	})
	if err != nil || !found {
		return nil, err
	}
	if err := n.readChains(t); err != nil {
		return nil, err
	}
	for _, c := range t.Chains {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := n.readRules(key, c); err != nil {
			return nil, err
		}
	}
	if err := n.readSets(t); err != nil {
		return nil, err
	}
	for _, s := range t.Sets {
		if s.Dynamic || s.Foreign || elements != nil && !elements(&s.Set) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := n.readElements(key, s); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (n *Netlink) readChains(t *Table) error {
	w := n.request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, t.Key.Family)
	w.End()
	return n.conn.Dump(w, func(m nfnetlink.Message) error {
		var c TableChain
		table, drops := "", false
		for typ, v := range m.Attributes() {
			switch typ {
			case unix.NFTA_CHAIN_TABLE:
				table = nfnetlink.CString(v)
			case unix.NFTA_CHAIN_NAME:
				c.Name = nfnetlink.CString(v)
			case unix.NFTA_CHAIN_TYPE:
				c.Filter = nfnetlink.CString(v) == "filter"
			case nftaChainUserdata:
				c.Comment = nfnetlink.CString(readUserdata(v, userdata.TypeComment))
			case unix.NFTA_CHAIN_POLICY:
				drops = nfnetlink.Uint32(v) != nfAccept
			case unix.NFTA_CHAIN_HOOK:
				for typ, v := range nfnetlink.Attributes(v) {
					switch typ {
					case unix.NFTA_HOOK_HOOKNUM:
						c.Hook = hookOf(nfnetlink.Uint32(v))
					case unix.NFTA_HOOK_PRIORITY:
						c.Priority = int32(nfnetlink.Uint32(v))
					}
				}
			}
		}
		if drops {
			c.Hook = ^NoHook
		}
		if table == t.Key.Name {
			t.Chains[c.Name] = &c
		}
		return nil
	})
}

func hookOf(number uint32) Hook {
	for _, h := range []Hook{Prerouting, Forward, Output, Postrouting} {
		if hookNumber(h) == number {
			return h
		}
	}
	return ^NoHook
}

// readRules reads the rules of one chain. To go on with a list of all rules of a table, the kernel counts them from the start
// for each 32 KiB: 4,000 services with affinity took 6 to 8 s that way.
func (n *Netlink) readRules(table TableKey, c *TableChain) error {
	w := n.request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, table.Family)
	w.Text(unix.NFTA_RULE_TABLE, table.Name)
	w.Text(unix.NFTA_RULE_CHAIN, c.Name)
	w.End()
	return n.conn.Dump(w, func(m nfnetlink.Message) error {
		var id RuleID
		for typ, v := range m.Attributes() {
			if typ == unix.NFTA_RULE_USERDATA {
				id = readRuleID(v)
			}
		}
		c.Rules = append(c.Rules, id)
		return nil
	})
}

func (n *Netlink) readSets(t *Table) error {
	w := n.request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t.Key.Family)
	w.Text(unix.NFTA_SET_TABLE, t.Key.Name)
	w.End()
	return n.conn.Dump(w, func(m nfnetlink.Message) error {
		var d definition
		var name, table, comment string
		for typ, v := range m.Attributes() {
			switch typ {
			case unix.NFTA_SET_TABLE:
				table = nfnetlink.CString(v)
			case unix.NFTA_SET_NAME:
				name = nfnetlink.CString(v)
			case unix.NFTA_SET_FLAGS:
				d.flags = nfnetlink.Uint32(v)
			case unix.NFTA_SET_KEY_TYPE:
				d.keyType = nfnetlink.Uint32(v)
			case unix.NFTA_SET_KEY_LEN:
				d.keyLen = nfnetlink.Uint32(v)
			case unix.NFTA_SET_DATA_TYPE:
				d.dataType = nfnetlink.Uint32(v)
			case unix.NFTA_SET_DATA_LEN:
				d.dataLen = nfnetlink.Uint32(v)
			case unix.NFTA_SET_DESC:
				for typ, v := range nfnetlink.Attributes(v) {
					if typ == unix.NFTA_SET_DESC_SIZE {
						d.size = nfnetlink.Uint32(v)
					}
				}
			case unix.NFTA_SET_USERDATA:
				comment = nfnetlink.CString(readUserdata(v, userdata.NFTNL_UDATA_SET_COMMENT))
			}
		}
		if table == t.Key.Name && d.flags&unix.NFT_SET_ANONYMOUS == 0 {
			s := setOfDefinition(d, t.Key.Family)
			s.Name, s.Comment = name, comment
			t.Sets[name] = s
		}
		return nil
	})
}

// setOfDefinition is the reverse of definitionOf. Source and destination addresses are of one type: as the key's last
// field behind a port it is the source, and of dynamic sets the first; of two addresses the first is the source. So are
// Constant and Random: of two numbers the first is Constant, and so is the one of a dynamic set.
func setOfDefinition(d definition, f model.Family) *TableSet {
	if d.flags&unix.NFT_SET_EVAL != 0 && d.size == MaxDynamic {
		d.size = 0 // the kernel's choice, made when the first rule refers to the set
	}
	s := &TableSet{Set: Set{Size: d.size, Key: fieldsOfType(d.keyType), Dynamic: d.flags&unix.NFT_SET_EVAL != 0,
		Interval: d.flags&unix.NFT_SET_INTERVAL != 0}}
	switch {
	case d.dataType == verdictType:
		s.Verdicts, d.dataLen = true, 0
	case d.flags&unix.NFT_SET_MAP != 0:
		s.Value = fieldsOfType(d.dataType)
	}
	switch n := len(s.Key); {
	case n == 0:
	case s.Dynamic:
		s.Key[0] = SourceAddr
		for i, field := range s.Key {
			if field == Random {
				s.Key[i] = Constant
			}
		}
	case n == 2 && s.Key[0] == Random && s.Key[1] == Random:
		s.Key[0] = Constant
	case n > 1 && s.Key[n-2] == DestinationPort && s.Key[n-1] == DestinationAddr:
		s.Key[n-1] = SourceAddr
	case n == 2 && s.Key[0] == DestinationAddr && s.Key[1] == DestinationAddr:
		s.Key[0] = SourceAddr
	}
	s.Foreign = definitionOf(&s.Set, f) != d
	return s
}

func fieldsOfType(t uint32) (fields []Field) {
	for shift := 24; shift >= 0; shift -= 6 {
		switch t >> shift & 63 {
		case 12:
			fields = append(fields, Protocol)
		case 13:
			fields = append(fields, DestinationPort)
		case 4:
			fields = append(fields, Random)
		case 7, 8:
			fields = append(fields, DestinationAddr)
		}
	}
	return fields
}

func (n *Netlink) readElements(key TableKey, s *TableSet) error {
	w := n.request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, key.Family)
	w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, key.Name)
	w.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	w.End()
	// A list is read in pieces, by the number of elements that were read before. If the kernel enlarges the hash table between
	// two (it does so a while after a big change), as many elements are there twice as are left out.
	var seen map[string]bool
	if s.Size == 0 && !s.Interval {
		seen = map[string]bool{}
	}
	twice := false
	size := fieldsSize(key.Family, s.Key)
	err := n.conn.Dump(w, func(m nfnetlink.Message) error {
		for typ, v := range m.Attributes() {
			if typ == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				for _, v := range nfnetlink.Attributes(v) {
					e := readElement(v)
					// "*", for example: nothing that this package could delete.
					s.Foreign = s.Foreign || padded(len(e.Key)) != size && !(s.Interval && len(e.Key) == 2*size)
					if seen != nil {
						twice = twice || seen[e.Key]
						seen[e.Key] = true
					}
					s.Elements = append(s.Elements, e)
				}
			}
		}
		return nil
	})
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		err = nil // maybe another table changed: ReadTable finds out
	}
	if err == nil && twice {
		err = nfnetlink.ErrInterrupted
	}
	return err
}

func readElement(b []byte) (e Element) {
	keyEnd := ""
	for typ, v := range nfnetlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			for _, v := range nfnetlink.Attributes(v) {
				e.Key = string(v)
			}
		case nftaSetElemKeyEnd:
			for _, v := range nfnetlink.Attributes(v) {
				keyEnd = string(v)
			}
		case unix.NFTA_SET_ELEM_DATA:
			for typ, v := range nfnetlink.Attributes(v) {
				if typ == unix.NFTA_DATA_VALUE {
					e.Value = string(v)
					continue
				}
				for typ, v := range nfnetlink.Attributes(v) {
					if typ == unix.NFTA_VERDICT_CHAIN {
						e.Value = nfnetlink.CString(v)
					}
				}
			}
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = nfnetlink.CString(readUserdata(v, userdata.TypeComment))
		}
	}
	e.Key += keyEnd
	return e
}
