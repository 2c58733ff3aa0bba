package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// registerAt returns the register that begins at an offset in the registers' 64 bytes: if possible one of the four old
// ones of 16 bytes, like nft.
func registerAt(offset int) uint32 {
	if offset%16 == 0 {
		return unix.NFT_REG_1 + uint32(offset/16)
	}
	return unix.NFT_REG32_00 + uint32(offset/4)
}

// load returns the expressions that load a key into the registers, from the first.
func load(fields []Field, v numbers, family model.Family) []expr.Any {
	var exprs []expr.Any
	at := 0
	for _, f := range fields {
		reg, info := registerAt(at), f.info(family)
		at += padded(info.size)
		switch f {
		case Protocol:
			exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg})
		case Random, Constant, Scope:
			modulus, offset := v.numgen(f)
			exprs = append(exprs, &expr.Numgen{Register: reg, Type: unix.NFT_NG_RANDOM,
				Modulus: modulus, Offset: offset})
		default:
			base := expr.PayloadBaseNetworkHeader
			if f == DestinationPort {
				base = expr.PayloadBaseTransportHeader
			}
			exprs = append(exprs, &expr.Payload{DestRegister: reg, Base: base, Offset: info.offset,
				Len: uint32(info.size)})
		}
	}
	return exprs
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

// bitwise changes what is in the first register: (value & mask) ^ xor.
func bitwise(mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1,
		Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

func meta(key expr.MetaKey) *expr.Meta { return &expr.Meta{Key: key, Register: unix.NFT_REG_1} }

// compareBits compares some bits of what is loaded with a value.
func compareBits(load expr.Any, mask uint32, op expr.CmpOp, value uint32) []expr.Any {
	return []expr.Any{load, bitwise(native(mask), native(0)), cmp(op, native(value))}
}

// changeMark makes the packet mark (mark & mask) ^ xor.
func changeMark(mask, xor uint32) []expr.Any {
	return []expr.Any{meta(expr.MetaKeyMARK), bitwise(native(mask), native(xor)),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1}}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

func dnat(family model.Family, port uint32) *expr.NAT {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfnetlink.Proto(family)), RegAddrMin: unix.NFT_REG_1,
		RegProtoMin: port}
}

// encode returns the expressions of a statement, as nft would make them.
func encode(s Statement, family model.Family) ([]expr.Any, error) {
	switch s := s.(type) {
	case InSet:
		return append(load(s.Set.Key, numbers{id: s.ID, scope: s.Scope}, family),
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.Set.Name}), nil
	case InPrefix:
		return encodeInPrefix(s, family), nil
	case IsLocal:
		source := s.Field == SourceAddr
		return []expr.Any{
			&expr.Fib{Register: unix.NFT_REG_1, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source},
			cmp(expr.CmpOpEq, native(unix.RTN_LOCAL))}, nil
	case FromInterface:
		name := []byte(s.Name)
		if !s.Prefix {
			name = append(name, make([]byte, max(unix.IFNAMSIZ-len(name), 0))...)
		}
		return []expr.Any{meta(expr.MetaKeyIIFNAME), cmp(equal(s.Not), name)}, nil
	case IsProtocol:
		return []expr.Any{meta(expr.MetaKeyL4PROTO), cmp(expr.CmpOpEq, []byte{byte(s.Protocol)})}, nil
	case IsDNATed:
		const ipsDstNAT = 1 << 5
		return compareBits(&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG_1}, ipsDstNAT, expr.CmpOpNeq, 0), nil
	case IsNew:
		const stateNew = 1 << 3
		return compareBits(&expr.Ct{Key: expr.CtKeySTATE, Register: unix.NFT_REG_1}, stateNew, expr.CmpOpNeq, 0), nil
	case OneIn:
		return []expr.Any{&expr.Numgen{Register: unix.NFT_REG_1, Modulus: s.N, Type: unix.NFT_NG_RANDOM},
			cmp(expr.CmpOpEq, native(0))}, nil
	case Fraction:
		// Numbers are compared byte by byte, so the random one is made big-endian.
		return []expr.Any{
			&expr.Numgen{Register: unix.NFT_REG_1, Modulus: s.Denominator, Type: unix.NFT_NG_RANDOM},
			&expr.Byteorder{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Op: expr.ByteorderHton,
				Len: 4, Size: 4},
			cmp(expr.CmpOpLt, binary.BigEndian.AppendUint32(nil, s.Numerator))}, nil
	case HasMark:
		return compareBits(meta(expr.MetaKeyMARK), s.Bit, expr.CmpOpEq, s.Bit), nil
	case SetMark:
		return changeMark(^s.Bit, s.Bit), nil
	case FlipMark:
		return changeMark(^uint32(0), s.Bit), nil
	case Refresh:
		return append(load(s.Set.Key, numbers{id: s.ID, scope: s.Scope}, family), &expr.Dynset{
			SrcRegKey: unix.NFT_REG_1, SetName: s.Set.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.Timeout}), nil
	case GotoMap:
		return append(load(s.Map.Key, numbers{}, family), &expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.Map.Name,
			IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}), nil
	case DNATMap:
		return append(load(s.Map.Key, numbers{id: s.ID, n: s.N}, family), &expr.Lookup{SourceRegister: unix.NFT_REG_1,
			SetName: s.Map.Name, IsDestRegSet: true, DestRegister: unix.NFT_REG_1},
			dnat(family, registerAt(DestinationAddr.info(family).size))), nil
	case DNAT:
		nat := dnat(family, registerAt(16))
		nat.Specified = true
		return []expr.Any{
			&expr.Immediate{Register: unix.NFT_REG_1, Data: AppendAddr(nil, s.To.Addr())},
			&expr.Immediate{Register: nat.RegProtoMin, Data: binary.BigEndian.AppendUint16(nil, s.To.Port())},
			nat}, nil
	case KeepDestination:
		return append(load([]Field{DestinationAddr}, numbers{}, family), dnat(family, 0)), nil
	case Masquerade:
		return []expr.Any{&expr.Masq{FullyRandom: true}}, nil
	case Goto:
		return verdict(expr.VerdictGoto, s.Chain), nil
	case Jump:
		return verdict(expr.VerdictJump, s.Chain), nil
	case Return:
		return verdict(expr.VerdictReturn, ""), nil
	case Drop:
		return verdict(expr.VerdictDrop, ""), nil
	case Reject:
		// Not NFT_REJECT_ICMPX_UNREACH, which is for family inet: in a table of one family the kernel accepts it, and
		// drops.
		code := uint8(3) // ICMP port unreachable
		if family == model.IPv6 {
			code = 4
		}
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}, nil
	}
	return nil, fmt.Errorf("unknown statement %T", s)
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
		Offset: s.Field.info(family).offset, Len: uint32(length)}}
	if length*8 != ones {
		mask := make([]byte, length)
		for i := range mask {
			mask[i] = bits.Reverse8(byte(1<<min(max(ones-8*i, 0), 8) - 1))
		}
		exprs = append(exprs, bitwise(mask, make([]byte, length)))
	}
	return append(exprs, cmp(equal(s.Not), addr[:length]))
}
