package dataplane

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// batch is a transaction as netlink messages.
type batch struct {
	nfnetlink.Builder
	ops []uint32 // the sequence number of the first message of each operation
}

// encodeBatch builds the messages of a transaction; setGeneration then adds the generation of the ruleset that it is
// for. If commit is false, the message that ends the batch is left out: the kernel checks the batch and undoes
// everything.
func encodeBatch(tx *Transaction, commit bool) (*batch, error) {
	b := &batch{}
	b.Buf = make([]byte, 0, tx.bytes())
	const batchGenID = 1
	b.Message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)
	if commit {
		b.Uint32(batchGenID, 0)
	}
	b.End()
	for i := range tx.ops {
		b.ops = append(b.ops, b.Seq+1)
		if err := b.op(tx.Table, &tx.ops[i]); err != nil {
			return nil, tx.failed(i, err, "")
		}
	}
	b.Acknowledge()
	if commit {
		b.Message(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)
		b.End()
	}
	return b, nil
}

// bytes returns how many bytes the messages take, or a few more. A buffer that is too small would be copied, and one
// that is too big would count as used, at the first Sync, which needs the most memory anyway.
func (t *Transaction) bytes() int {
	const head, operation, statement = 4096, 224, 128
	n := head
	for i := range t.ops {
		n += operation
		if r := t.ops[i].rule; r != nil {
			n += statement*len(r.Statements) + len(r.Comment)
		}
	}
	return n + t.elementBytes()
}

// elementBytes returns how many of these are about elements.
func (t *Transaction) elementBytes() (n int) {
	const element, value, verdict, comment, timeout = 12, 8, 28, 8, 12 // what comes in addition to the bytes themselves
	for i := range t.ops {
		o := &t.ops[i]
		for j := range o.elements {
			e := &o.elements[j]
			n += element + len(e.Key) + value + len(e.Value)
			if o.set.Verdicts {
				n += verdict - value
			}
			if o.timeout > 0 {
				n += timeout
			}
			if e.Comment != "" {
				n += comment + len(e.Comment)
			}
		}
	}
	return n
}

// setGeneration changes the attribute of the first message.
func (b *batch) setGeneration(g uint32) { binary.BigEndian.PutUint32(b.Buf[nfnetlink.HeaderLen+4:], g) }

// object begins a message about a table or an object in it, whose name is in a separate attribute.
func (b *batch) object(typ, flags uint16, table TableKey, nameAttr uint16, name string) {
	b.Message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_REQUEST|flags, nfnetlink.Proto(table.Family), 0)
	b.Text(nftaTable, table.Name)
	if name != "" {
		b.Text(nameAttr, name)
	}
}

func (b *batch) op(table TableKey, o *op) error {
	const create = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	switch o.verb {
	case addTable:
		b.object(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table, 0, "")
		b.Uint32(unix.NFTA_TABLE_FLAGS, 0)
		b.comment(nftaTableUserdata, o.comment)
	case deleteTable:
		b.object(unix.NFT_MSG_DELTABLE, 0, table, 0, "")
	case addChain:
		b.object(unix.NFT_MSG_NEWCHAIN, create, table, unix.NFTA_CHAIN_NAME, o.name)
		b.chain(o.chain)
	case deleteChain:
		b.object(unix.NFT_MSG_DELCHAIN, 0, table, unix.NFTA_CHAIN_NAME, o.name)
	case addRule:
		b.object(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, table, unix.NFTA_RULE_CHAIN, o.name)
		if err := b.rule(table.Family, o.rule); err != nil {
			return err
		}
	case flushChain:
		b.object(unix.NFT_MSG_DELRULE, 0, table, unix.NFTA_RULE_CHAIN, o.name)
	case addSet:
		b.object(unix.NFT_MSG_NEWSET, create, table, unix.NFTA_SET_NAME, o.name)
		b.set(table.Family, o.set)
	case deleteSet:
		b.object(unix.NFT_MSG_DELSET, 0, table, unix.NFTA_SET_NAME, o.name)
	case addElements:
		b.elements(unix.NFT_MSG_NEWSETELEM, create, table, o)
		return nil
	case deleteElements:
		b.elements(unix.NFT_MSG_DELSETELEM, 0, table, o)
		return nil
	}
	b.End()
	return nil
}

// Attributes that golang.org/x/sys/unix does not have. The kernel takes user data of tables and chains from 5.10 on.
const (
	nftaTable         = 1 // in messages of every kind
	nftaTableUserdata = 6
	nftaChainUserdata = 12
	nftaSetExpr       = 17
	nftaSetCount      = 20
	nfAccept          = 1
)

func (b *batch) comment(typ uint16, text string) {
	if text != "" {
		b.Bytes(typ, userdata.AppendString(nil, userdata.TypeComment, text))
	}
}

func (b *batch) chain(c *Chain) {
	if c.Hook != NoHook {
		at := b.Open(unix.NFTA_CHAIN_HOOK)
		b.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(c.Hook-1))
		b.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		b.Close(at)
		b.Uint32(unix.NFTA_CHAIN_POLICY, nfAccept)
		b.Text(unix.NFTA_CHAIN_TYPE, c.kind())
	}
	b.comment(nftaChainUserdata, c.Comment)
}

func (b *batch) rule(f model.Family, r *Rule) error {
	at := b.Open(unix.NFTA_RULE_EXPRESSIONS)
	for i, s := range r.Statements {
		exprs, err := encode(s, f)
		if err != nil {
			return err
		}
		if i > 0 && hasLoaded(r.Statements[i-1], s) {
			exprs = exprs[len(exprs)-1:]
		}
		for _, e := range exprs {
			if err := b.expression(f, e); err != nil {
				return err
			}
		}
	}
	b.Close(at)
	b.Bytes(unix.NFTA_RULE_USERDATA, ruleUserdata(r, f))
	return nil
}

// hasLoaded reports whether a Refresh finds its key where the statement before has loaded it.
func hasLoaded(before, s Statement) bool {
	in, ok := before.(InSet)
	refresh, refreshes := s.(Refresh)
	return ok && refreshes && in.ID == refresh.ID && in.Scope == refresh.Scope &&
		slices.Equal(in.Set.Key, refresh.Set.Key)
}

func (b *batch) set(f model.Family, s *Set) {
	d := definitionOf(s, f)
	b.Uint32(unix.NFTA_SET_ID, b.Seq) // any number that is unique in the batch
	b.Uint32(unix.NFTA_SET_FLAGS, d.flags)
	b.Uint32(unix.NFTA_SET_KEY_TYPE, d.keyType)
	b.Uint32(unix.NFTA_SET_KEY_LEN, d.keyLen)
	if d.dataType != 0 {
		b.Uint32(unix.NFTA_SET_DATA_TYPE, d.dataType)
		b.Uint32(unix.NFTA_SET_DATA_LEN, d.dataLen)
	}
	if s.Size > 0 {
		at := b.Open(unix.NFTA_SET_DESC)
		b.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size)
		b.Close(at)
	}
	b.Bytes(unix.NFTA_SET_USERDATA, setUserdata(s, f))
}

// elements appends as many messages as the elements need: a list of them is an attribute, which has a maximum length.
func (b *batch) elements(typ, flags uint16, table TableKey, o *op) {
	size := fieldsSize(table.Family, o.set.Key)
	adding := typ == unix.NFT_MSG_NEWSETELEM
	rest := o.elements
	for len(rest) > 0 {
		b.object(typ, flags, table, unix.NFTA_SET_ELEM_LIST_SET, o.name)
		list := b.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for len(rest) > 0 && len(b.Buf)-list < nfnetlink.MaxAttrLen {
			b.element(&rest[0], o, size, adding)
			rest = rest[1:]
		}
		b.Close(list)
		b.End()
	}
}

func (b *batch) element(e *Element, o *op, size int, adding bool) {
	s := o.set
	if s.Interval {
		b.rangeElement(e.Key[:size], e.Key[size:])
		return
	}
	at := b.Open(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, e.Key)
	if adding {
		switch {
		case s.Verdicts:
			data := b.Open(unix.NFTA_SET_ELEM_DATA)
			verdict := b.Open(unix.NFTA_DATA_VERDICT)
			b.Uint32(unix.NFTA_VERDICT_CODE, uint32(unix.NFT_GOTO&0xffffffff))
			b.Text(unix.NFTA_VERDICT_CHAIN, e.Value)
			b.Close(verdict)
			b.Close(data)
		case s.Value != nil:
			b.value(unix.NFTA_SET_ELEM_DATA, e.Value)
		case o.timeout > 0:
			b.Uint64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(o.timeout.Milliseconds()))
		}
		if e.Comment != "" {
			b.Attr(unix.NFTA_SET_ELEM_USERDATA, len(e.Comment)+3)
			b.Buf = append(append(append(b.Buf, 0, byte(len(e.Comment)+1)), e.Comment...), 0)
			b.Pad()
		}
	}
	b.Close(at)
}

// rangeElement appends the two elements that the kernel has for a range: its first value and, with a flag, the one
// after its last. There is only the first if the range ends with the last value of all.
func (b *batch) rangeElement(first, last string) {
	at := b.Open(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, first)
	b.Close(at)
	if end, ok := successor(last); ok {
		at = b.Open(unix.NFTA_LIST_ELEM)
		b.value(unix.NFTA_SET_ELEM_KEY, end)
		b.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		b.Close(at)
	}
}

// successor returns the next greater key of the same length, false if there is none.
func successor(key string) (string, bool) {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return string(b), true
		}
	}
	return "", false
}

// value appends data as a nested attribute.
func (b *batch) value(typ uint16, v string) {
	at := b.Open(typ)
	b.Raw(unix.NFTA_DATA_VALUE, v)
	b.Close(at)
}

// opOf returns the operation that a message belongs to.
func (b *batch) opOf(seq uint32) int {
	for i := len(b.ops) - 1; i >= 0; i-- {
		if b.ops[i] <= seq {
			return i
		}
	}
	return -1
}
