package dataplane

import (
	"encoding/binary"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ruleIDType is the type under which a rule's user data holds its RuleID. nft ignores types that it does not know.
const ruleIDType = userdata.Type(0x4b)

func ruleUserdata(r *Rule, family model.Family) []byte {
	var b []byte
	if r.Comment != "" {
		b = userdata.AppendString(b, userdata.TypeComment, r.Comment)
	}
	return userdata.Append(b, ruleIDType, binary.BigEndian.AppendUint64(nil, uint64(ruleID(r.append(nil, family)))))
}

func readRuleID(udata []byte) RuleID {
	if b := readUserdata(udata, ruleIDType); len(b) == 8 {
		return RuleID(binary.BigEndian.Uint64(b))
	}
	return 0
}

// readUserdata is userdata.Get for data that may be malformed: others may have written it.
func readUserdata(b []byte, typ userdata.Type) []byte {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		v := b[2 : 2+int(b[1])]
		if userdata.Type(b[0]) == typ {
			return v
		}
		b = b[2+len(v):]
	}
	return nil
}

// readComment reads a comment. Tables, chains and elements have theirs under type 0, sets under another.
func readComment(b []byte, typ userdata.Type) string { return nfnetlink.CString(readUserdata(b, typ)) }

// setUserdata describes the fields of a set in nft's own terms, so that nft can print elements and load them again:
// otherwise nft would treat a number of 4 bytes as big-endian, and not know its size in keys.
func setUserdata(s *Set, family model.Family) []byte {
	var b []byte
	b = userdata.AppendUint32(b, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, 0)
	if s.Value != nil {
		b = userdata.AppendUint32(b, userdata.NFTNL_UDATA_SET_DATABYTEORDER, 0)
	}
	b = userdata.Append(b, userdata.NFTNL_UDATA_SET_KEY_TYPEOF, typeof(s.Key, family))
	if s.Value != nil {
		b = userdata.Append(b, userdata.NFTNL_UDATA_SET_DATA_TYPEOF, typeof(s.Value, family))
		b = userdata.AppendUint32(b, userdata.NFTNL_UDATA_SET_DATA_INTERVAL, 0)
	}
	if s.Comment != "" {
		b = userdata.AppendString(b, userdata.NFTNL_UDATA_SET_COMMENT, s.Comment)
	}
	return b
}

// The numbers by which nft's user data names expressions: its enum expr_types.
const (
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23
)

func typeof(fields []Field, family model.Family) []byte {
	if len(fields) == 1 {
		return typeofField(fields[0], family)
	}
	var list []byte
	for i, f := range fields {
		list = userdata.Append(list, userdata.Type(i), typeofField(f, family))
	}
	return typeofExpr(exprConcat, list)
}

// typeofExpr is an expression as user data: its type, and data that depend on it.
func typeofExpr(typ uint32, data []byte) []byte {
	b := binary.NativeEndian.AppendUint32([]byte{0, 4}, typ)
	return userdata.Append(b, 1, data)
}

func typeofField(f Field, family model.Family) []byte {
	numbers := func(values ...uint32) (b []byte) {
		for i, v := range values {
			b = binary.NativeEndian.AppendUint32(append(b, byte(i), 4), v)
		}
		return b
	}
	switch f {
	case Protocol:
		return typeofExpr(exprMeta, numbers(unix.NFT_META_L4PROTO))
	case Random, Constant, Scope:
		return typeofExpr(exprNumgen, numbers(unix.NFT_NG_RANDOM, typeofModulus, 0))
	}
	info := f.info(family)
	return typeofExpr(exprPayload, numbers(info.header, info.field))
}
