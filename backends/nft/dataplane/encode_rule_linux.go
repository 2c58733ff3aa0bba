package dataplane

import (
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// registerAt returns the register that begins at an offset in the registers' 64 bytes: one of the four old ones of 16
// bytes where it can be, as nft does it.
func registerAt(offset int) uint32 {
	if offset%16 == 0 {
		return unix.NFT_REG_1 + uint32(offset/16)
	}
	return unix.NFT_REG32_00 + uint32(offset/4)
}

// load returns the expressions that load a key into the registers, from the first.
func load(fields []Field, v numbers, family model.Family) []expr.Any {
	var exprs []expr.Any
	offset := 0
	for _, f := range fields {
		reg := registerAt(offset)
		size := f.size(family)
		offset += padded(size)
		switch f {
		case Protocol:
			exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg})
		case DestinationPort:
			exprs = append(exprs, &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
		case Random, Constant:
			modulus, offset := v.numgen(f)
			exprs = append(exprs, &expr.Numgen{Register: reg, Modulus: modulus, Offset: offset, Type: unix.NFT_NG_RANDOM})
		default:
			exprs = append(exprs, &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader,
				Offset: addrOffset(f, family), Len: uint32(size)})
		}
	}
	return exprs
}

// addrOffset returns where an address is in the network header.
func addrOffset(f Field, family model.Family) uint32 {
	switch {
	case family == model.IPv6 && f == SourceAddr:
		return 8
	case family == model.IPv6:
		return 24
	case f == SourceAddr:
		return 12
	}
	return 16
}

func cmp(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: data}
}

func equal(not bool) expr.CmpOp {
	if not {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

func native(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

// markBitwise changes the packet mark: (mark & mask) ^ xor.
func markBitwise(mask, xor uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: native(mask), Xor: native(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1},
	}
}

// encode returns the expressions of a statement, as nft would make them.
func encode(s Statement, family model.Family) ([]expr.Any, error) {
	switch s := s.(type) {
	case InSet:
		return append(load(s.Key, numbers{id: s.ID}, family), &expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.Set, Invert: s.Not}), nil
	case InPrefix:
		return encodeInPrefix(s, family), nil
	case IsLocal:
		return []expr.Any{
			&expr.Fib{Register: unix.NFT_REG_1, ResultADDRTYPE: true, FlagSADDR: s.Field == SourceAddr, FlagDADDR: s.Field != SourceAddr},
			cmp(expr.CmpOpEq, native(unix.RTN_LOCAL)),
		}, nil
	case FromInterface:
		name := []byte(s.Name)
		if !s.Prefix {
			name = append(name, make([]byte, max(unix.IFNAMSIZ-len(name), 0))...)
		}
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1}, cmp(equal(s.Not), name)}, nil
	case IsProtocol:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1}, cmp(expr.CmpOpEq, []byte{byte(s.Protocol)})}, nil
	case IsDNATed:
		const ipsDstNAT = 1 << 5
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG_1},
			&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: native(ipsDstNAT), Xor: native(0)},
			cmp(expr.CmpOpNeq, native(0)),
		}, nil
	case IsNew:
		const stateNew = 1 << 3
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: unix.NFT_REG_1},
			&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: native(stateNew), Xor: native(0)},
			cmp(expr.CmpOpNeq, native(0)),
		}, nil
	case OneIn:
		return []expr.Any{&expr.Numgen{Register: unix.NFT_REG_1, Modulus: s.N, Type: unix.NFT_NG_RANDOM}, cmp(expr.CmpOpEq, native(0))}, nil
	case HasMark:
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
			&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: native(s.Bit), Xor: native(0)},
			cmp(expr.CmpOpEq, native(s.Bit)),
		}, nil
	case SetMark:
		return markBitwise(^s.Bit, s.Bit), nil
	case FlipMark:
		return markBitwise(^uint32(0), s.Bit), nil
	case Refresh:
		return append(load(s.Key, numbers{id: s.ID}, family),
			&expr.Dynset{SrcRegKey: unix.NFT_REG_1, SetName: s.Set, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.Timeout}), nil
	case GotoMap:
		return append(load(s.Key, numbers{}, family),
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.Map, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}), nil
	case DNATMap:
		return append(load(s.Key, numbers{s.ID, s.N}, family),
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.Map, IsDestRegSet: true, DestRegister: unix.NFT_REG_1},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfnetlink.Proto(family)), RegAddrMin: unix.NFT_REG_1,
				RegProtoMin: registerAt(DestinationAddr.size(family))}), nil
	case DNAT:
		return encodeDNAT(s.To, family), nil
	case Masquerade:
		return []expr.Any{&expr.Masq{FullyRandom: true}}, nil
	case Goto:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: s.Chain}}, nil
	case Jump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: s.Chain}}, nil
	case Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}, nil
	case Reject:
		// Not NFT_REJECT_ICMPX_UNREACH, which is for both families: in a table of one the kernel takes it, and drops.
		code := uint8(3) // ICMP port unreachable
		if family == model.IPv6 {
			code = 4
		}
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}, nil
	}
	return nil, fmt.Errorf("unknown statement %T", s)
}

func encodeDNAT(to netip.AddrPort, family model.Family) []expr.Any {
	addr := AppendAddr(nil, to.Addr())
	reg := registerAt(16)
	return []expr.Any{
		&expr.Immediate{Register: unix.NFT_REG_1, Data: addr},
		&expr.Immediate{Register: reg, Data: []byte{byte(to.Port() >> 8), byte(to.Port())}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfnetlink.Proto(family)), RegAddrMin: unix.NFT_REG_1, RegProtoMin: reg, Specified: true},
	}
}

// encodeInPrefix compares whole bytes if the prefix ends on a byte, and otherwise masks.
func encodeInPrefix(s InPrefix, family model.Family) []expr.Any {
	addr := AppendAddr(nil, s.Prefix.Masked().Addr())
	ones := s.Prefix.Bits()
	length := len(addr)
	if ones > 0 && ones%8 == 0 {
		length = ones / 8
	}
	exprs := []expr.Any{&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: addrOffset(s.Field, family), Len: uint32(length)}}
	if length*8 != ones {
		mask := make([]byte, length)
		for i := range mask {
			mask[i] = bits.Reverse8(byte(1<<min(max(ones-8*i, 0), 8) - 1))
		}
		exprs = append(exprs, &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(length),
			Mask: mask, Xor: make([]byte, length)})
	}
	return append(exprs, cmp(equal(s.Not), addr[:length]))
}
