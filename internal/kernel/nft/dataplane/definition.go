package dataplane

import "sigs.k8s.io/kube-proxy-lib/model"

// definition is a set as the kernel describes it, in a form that can be compared with the wanted one.
type definition struct {
	family                                          model.Family
	flags, keyType, keyLen, dataType, dataLen, size uint32
	// each is what every element has besides key and value, such as a counter. This package makes no such elements.
	each string
}

// Flags of sets (enum nft_set_flags).
const (
	setAnonymous = 0x1
	setInterval  = 0x4
	setMap       = 0x8
	setTimeout   = 0x10
	setDynamic   = 0x20
)

const verdictType = 0xffffff00 // NFT_DATA_VERDICT

func definitionOf(s *Set, f model.Family) definition {
	d := definition{family: f, keyType: fieldsType(s.Key, f), keyLen: uint32(fieldsSize(f, s.Key)), size: s.Size}
	if len(s.Key) == 1 {
		d.keyLen = uint32(s.Key[0].info(f).size)
	}
	switch {
	case s.Verdicts:
		d.flags, d.dataType = setMap, verdictType // the kernel chooses its length
	case s.Value != nil:
		d.flags, d.dataType, d.dataLen = setMap, fieldsType(s.Value, f), uint32(fieldsSize(f, s.Value))
	}
	if s.Interval {
		d.flags |= setInterval
	}
	if s.Dynamic {
		d.flags |= setDynamic | setTimeout
	}
	return d
}

// fieldsType returns nft's number for a concatenation of types, six bits for each.
func fieldsType(fields []Field, f model.Family) (t uint32) {
	for _, field := range fields {
		t = t<<6 | field.info(f).typ
	}
	return t
}

// withMarks returns a concatenation of types as fieldsType does. In a set that nft has loaded from a listing, or that
// the version before this one has made, numbers are integers.
func withMarks(t uint32) (marks uint32) {
	const bits = 6
	for at := 0; t>>at != 0; at += bits {
		typ := t >> at & (1<<bits - 1)
		if typ == typeInteger {
			typ = typeMark
		}
		marks |= typ << at
	}
	return marks
}
