package dataplane

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// batch is a transaction as netlink messages.
type batch struct {
	wire
	ops []uint32 // the sequence number of the first message of each operation
}

// encodeBatch builds the messages of a transaction. generation is that of the ruleset that the transaction is for.
// Without the message that ends it, commit false, the kernel checks the batch and takes everything back.
func encodeBatch(tx *Transaction, generation uint32, commit bool) (*batch, error) {
	b := &batch{}
	b.buf = make([]byte, 0, 4096+512*len(tx.ops)+56*tx.Elements())
	const batchGenID = 1
	b.message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)
	if commit {
		b.u32(batchGenID, generation)
	}
	b.end()
	for i := range tx.ops {
		b.ops = append(b.ops, b.seq+1)
		if err := b.op(tx.Table, &tx.ops[i]); err != nil {
			return nil, &OpError{Table: tx.Table, Op: tx.ops[i].String(), Err: err}
		}
	}
	b.acknowledge()
	if commit {
		b.message(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)
		b.end()
	}
	return b, nil
}

// setGeneration changes the attribute of the first message.
func (b *batch) setGeneration(g uint32) { binary.BigEndian.PutUint32(b.buf[headerLen+4:], g) }

func (b *batch) op(table TableKey, o *op) error {
	f := table.Family
	switch o.verb {
	case addTable:
		b.nft(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, f)
		b.text(unix.NFTA_TABLE_NAME, table.Name)
		b.u32(unix.NFTA_TABLE_FLAGS, 0)
		b.optional(nftaTableUserdata, comment(o.comment))
	case deleteTable:
		b.nft(unix.NFT_MSG_DELTABLE, 0, f)
		b.text(unix.NFTA_TABLE_NAME, table.Name)
	case addChain:
		b.chain(table, o.chain)
	case deleteChain:
		b.nft(unix.NFT_MSG_DELCHAIN, 0, f)
		b.text(unix.NFTA_CHAIN_TABLE, table.Name)
		b.text(unix.NFTA_CHAIN_NAME, o.name)
	case flushChain:
		b.nft(unix.NFT_MSG_DELRULE, 0, f)
		b.text(unix.NFTA_RULE_TABLE, table.Name)
		b.text(unix.NFTA_RULE_CHAIN, o.name)
	case addRule:
		return b.rule(table, o.name, o.rule)
	case addSet:
		b.set(table, o.set)
	case deleteSet:
		b.nft(unix.NFT_MSG_DELSET, 0, f)
		b.text(unix.NFTA_SET_TABLE, table.Name)
		b.text(unix.NFTA_SET_NAME, o.name)
	case addElements:
		b.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, table, o)
		return nil
	case deleteElements:
		b.elements(unix.NFT_MSG_DELSETELEM, 0, table, o)
		return nil
	}
	b.end()
	return nil
}

// Attributes that golang.org/x/sys/unix does not have. The kernel takes user data of tables and chains from 5.10 on.
const (
	nftaTableUserdata = 6
	nftaChainUserdata = 12
	nftaSetElemKeyEnd = 10
	nftaSetDescConcat = 2
	nftaSetFieldLen   = 1
	nftSetConcat      = 0x80
	nfAccept          = 1
)

// optional appends an attribute unless it is empty.
func (b *batch) optional(typ uint16, v []byte) {
	if len(v) > 0 {
		b.bytes(typ, v)
	}
}

func (b *batch) chain(table TableKey, c *Chain) {
	b.nft(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, table.Family)
	b.text(unix.NFTA_CHAIN_TABLE, table.Name)
	b.text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != NoHook {
		at := b.open(unix.NFTA_CHAIN_HOOK)
		b.u32(unix.NFTA_HOOK_HOOKNUM, hookNumber(c.Hook))
		b.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		b.close(at)
		b.u32(unix.NFTA_CHAIN_POLICY, nfAccept)
		b.text(unix.NFTA_CHAIN_TYPE, c.kind())
	}
	b.optional(nftaChainUserdata, comment(c.Comment))
}

func hookNumber(h Hook) uint32 {
	switch h {
	case Forward:
		return unix.NF_INET_FORWARD
	case Output:
		return unix.NF_INET_LOCAL_OUT
	case Postrouting:
		return unix.NF_INET_POST_ROUTING
	}
	return unix.NF_INET_PRE_ROUTING
}

func (b *batch) rule(table TableKey, chain string, r *Rule) error {
	b.nft(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, table.Family)
	b.text(unix.NFTA_RULE_TABLE, table.Name)
	b.text(unix.NFTA_RULE_CHAIN, chain)
	at := b.open(unix.NFTA_RULE_EXPRESSIONS)
	for _, s := range r.Statements {
		exprs, err := encode(s, table.Family)
		if err != nil {
			return err
		}
		for _, e := range exprs {
			data, err := expr.Marshal(nfproto(table.Family), e)
			if err != nil {
				return fmt.Errorf("%T: %w", e, err)
			}
			b.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
		}
	}
	b.close(at)
	b.bytes(unix.NFTA_RULE_USERDATA, ruleUserdata(r, table.Family))
	b.end()
	return nil
}

func (b *batch) set(table TableKey, s *Set) {
	f := table.Family
	d := definitionOf(s, f)
	b.nft(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f)
	b.text(unix.NFTA_SET_TABLE, table.Name)
	b.text(unix.NFTA_SET_NAME, s.Name)
	b.u32(unix.NFTA_SET_ID, b.seq) // any number will do that is not used twice in a batch
	b.u32(unix.NFTA_SET_FLAGS, d.flags)
	b.u32(unix.NFTA_SET_KEY_TYPE, d.keyType)
	b.u32(unix.NFTA_SET_KEY_LEN, d.keyLen)
	if d.dataType != 0 {
		b.u32(unix.NFTA_SET_DATA_TYPE, d.dataType)
		b.u32(unix.NFTA_SET_DATA_LEN, d.dataLen)
	}
	if s.Size > 0 || s.Interval {
		at := b.open(unix.NFTA_SET_DESC)
		if s.Size > 0 {
			b.u32(unix.NFTA_SET_DESC_SIZE, s.Size)
		}
		if s.Interval {
			list := b.open(nftaSetDescConcat)
			for _, field := range s.Key {
				elem := b.open(unix.NFTA_LIST_ELEM)
				b.u32(nftaSetFieldLen, uint32(field.size(f)))
				b.close(elem)
			}
			b.close(list)
		}
		b.close(at)
	}
	b.bytes(unix.NFTA_SET_USERDATA, setUserdata(s, f))
}

// definition is what the kernel knows of a set.
type definition struct {
	flags, keyType, keyLen, dataType, dataLen, size uint32
}

const verdictType = 0xffffff00 // NFT_DATA_VERDICT

func definitionOf(s *Set, f model.Family) definition {
	d := definition{keyType: fieldsType(s.Key, f), keyLen: uint32(fieldsSize(f, s.Key)), size: s.Size}
	if len(s.Key) == 1 {
		d.keyLen = uint32(s.Key[0].size(f))
	}
	switch {
	case s.Verdicts:
		d.flags, d.dataType = unix.NFT_SET_MAP, verdictType // its length is the kernel's own affair
	case s.Value != nil:
		d.flags, d.dataType, d.dataLen = unix.NFT_SET_MAP, fieldsType(s.Value, f), uint32(fieldsSize(f, s.Value))
	}
	if s.Interval {
		d.flags |= unix.NFT_SET_INTERVAL | nftSetConcat
	}
	if s.Dynamic {
		d.flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	return d
}

// fieldsType returns nft's number for a concatenation of types, six bits for each.
func fieldsType(fields []Field, f model.Family) (t uint32) {
	for _, field := range fields {
		t <<= 6
		switch field {
		case Protocol:
			t |= 12 // inet_proto
		case DestinationPort:
			t |= 13 // inet_service
		case Random, Constant:
			t |= 4 // integer
		default:
			if t |= 7; f == model.IPv6 { // ipv4_addr
				t++ // ipv6_addr
			}
		}
	}
	return t
}

// elements appends as many messages as the elements need: a list of them is an attribute, which has a maximum length.
func (b *batch) elements(typ, flags uint16, table TableKey, o *op) {
	size := fieldsSize(table.Family, o.set.Key)
	adding := typ == unix.NFT_MSG_NEWSETELEM
	rest := o.elements
	for len(rest) > 0 {
		b.nft(typ, flags, table.Family)
		b.text(unix.NFTA_SET_ELEM_LIST_TABLE, table.Name)
		b.text(unix.NFTA_SET_ELEM_LIST_SET, o.name)
		list := b.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for len(rest) > 0 && len(b.buf)-list < maxAttrLen {
			b.element(&rest[0], o.set, size, adding)
			rest = rest[1:]
		}
		b.close(list)
		b.end()
	}
}

func (b *batch) element(e *Element, s *Set, size int, adding bool) {
	at := b.open(unix.NFTA_LIST_ELEM)
	key, keyEnd := e.Key, ""
	if s.Interval {
		key, keyEnd = e.Key[:size], e.Key[size:]
	}
	b.value(unix.NFTA_SET_ELEM_KEY, key)
	if keyEnd != "" {
		b.value(nftaSetElemKeyEnd, keyEnd)
	}
	if adding {
		switch {
		case s.Verdicts:
			data := b.open(unix.NFTA_SET_ELEM_DATA)
			verdict := b.open(unix.NFTA_DATA_VERDICT)
			b.u32(unix.NFTA_VERDICT_CODE, uint32(unix.NFT_GOTO&0xffffffff))
			b.text(unix.NFTA_VERDICT_CHAIN, e.Value)
			b.close(verdict)
			b.close(data)
		case s.Value != nil:
			b.value(unix.NFTA_SET_ELEM_DATA, e.Value)
		}
		if e.Comment != "" {
			b.attr(unix.NFTA_SET_ELEM_USERDATA, len(e.Comment)+3)
			b.buf = append(append(append(b.buf, 0, byte(len(e.Comment)+1)), e.Comment...), 0)
			b.pad()
		}
	}
	b.close(at)
}

// value appends data as an attribute in an attribute.
func (b *batch) value(typ uint16, v string) {
	at := b.open(typ)
	b.raw(unix.NFTA_DATA_VALUE, v)
	b.close(at)
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

// beUint32 reads a number, 0 if it is not there.
func beUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
