package dataplane

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// expression appends an expression of a rule, as expr.Marshal would. That makes a copy of the bytes for each level of
// nesting, which for the rules of session affinity took longer than all the rest of their transaction. The expressions
// of those rules are encoded here; expr.Marshal encodes the others.
func (b *batch) expression(f model.Family, e expr.Any) error {
	var name string
	switch e.(type) {
	case *expr.Payload:
		name = "payload"
	case *expr.Numgen:
		name = "numgen"
	case *expr.Lookup:
		name = "lookup"
	case *expr.Dynset:
		name = "dynset"
	case *expr.Immediate, *expr.Verdict:
		name = "immediate"
	case *expr.Meta:
		name = "meta"
	case *expr.Cmp:
		name = "cmp"
	case *expr.NAT:
		name = "nat"
	default:
		data, err := expr.Marshal(nfnetlink.Proto(f), e)
		if err != nil {
			return fmt.Errorf("%T: %w", e, err)
		}
		b.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
		return nil
	}
	at := b.Open(unix.NFTA_LIST_ELEM)
	b.Text(unix.NFTA_EXPR_NAME, name)
	data := b.Open(unix.NFTA_EXPR_DATA)
	b.expressionData(e)
	b.Close(data)
	b.Close(at)
	return nil
}

func (b *batch) expressionData(e expr.Any) {
	switch e := e.(type) {
	case *expr.Payload:
		b.Uint32(unix.NFTA_PAYLOAD_DREG, e.DestRegister)
		b.Uint32(unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
		b.Uint32(unix.NFTA_PAYLOAD_OFFSET, e.Offset)
		b.Uint32(unix.NFTA_PAYLOAD_LEN, e.Len)
	case *expr.Numgen:
		b.Uint32(unix.NFTA_NG_DREG, e.Register)
		b.Uint32(unix.NFTA_NG_MODULUS, e.Modulus)
		b.Uint32(unix.NFTA_NG_TYPE, e.Type)
		b.Uint32(unix.NFTA_NG_OFFSET, e.Offset)
	case *expr.Lookup:
		b.Uint32(unix.NFTA_LOOKUP_SREG, e.SourceRegister)
		if e.IsDestRegSet {
			b.Uint32(unix.NFTA_LOOKUP_DREG, e.DestRegister)
		}
		b.Text(unix.NFTA_LOOKUP_SET, e.SetName)
		b.Uint32(unix.NFTA_LOOKUP_SET_ID, e.SetID)
	case *expr.Dynset:
		b.Uint32(unix.NFTA_DYNSET_SREG_KEY, e.SrcRegKey)
		b.Uint32(unix.NFTA_DYNSET_OP, e.Operation)
		b.Uint64(unix.NFTA_DYNSET_TIMEOUT, uint64(e.Timeout.Milliseconds()))
		b.Text(unix.NFTA_DYNSET_SET_NAME, e.SetName)
		b.Uint32(unix.NFTA_DYNSET_SET_ID, e.SetID)
		b.Uint32(unix.NFTA_DYNSET_FLAGS, 0)
	case *expr.Immediate:
		b.Uint32(unix.NFTA_IMMEDIATE_DREG, e.Register)
		at := b.Open(unix.NFTA_IMMEDIATE_DATA)
		b.Bytes(unix.NFTA_DATA_VALUE, e.Data)
		b.Close(at)
	case *expr.Meta:
		b.Uint32(unix.NFTA_META_KEY, uint32(e.Key))
		if e.SourceRegister {
			b.Uint32(unix.NFTA_META_SREG, e.Register)
		} else {
			b.Uint32(unix.NFTA_META_DREG, e.Register)
		}
	case *expr.Cmp:
		b.Uint32(unix.NFTA_CMP_SREG, e.Register)
		b.Uint32(unix.NFTA_CMP_OP, uint32(e.Op))
		at := b.Open(unix.NFTA_CMP_DATA)
		b.Bytes(unix.NFTA_DATA_VALUE, e.Data)
		b.Close(at)
	case *expr.NAT:
		b.Uint32(unix.NFTA_NAT_TYPE, uint32(e.Type))
		b.Uint32(unix.NFTA_NAT_FAMILY, e.Family)
		b.Uint32(unix.NFTA_NAT_REG_ADDR_MIN, e.RegAddrMin)
		if e.RegProtoMin != 0 {
			b.Uint32(unix.NFTA_NAT_REG_PROTO_MIN, e.RegProtoMin)
		}
		if e.Specified {
			b.Uint32(unix.NFTA_NAT_FLAGS, expr.NF_NAT_RANGE_PROTO_SPECIFIED)
		}
	case *expr.Verdict:
		b.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		at := b.Open(unix.NFTA_IMMEDIATE_DATA)
		verdict := b.Open(unix.NFTA_DATA_VERDICT)
		b.Uint32(unix.NFTA_VERDICT_CODE, uint32(e.Kind))
		if e.Chain != "" {
			b.Text(unix.NFTA_VERDICT_CHAIN, e.Chain)
		}
		b.Close(verdict)
		b.Close(at)
	}
}
