package dataplane

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Dump returns tables as "nft list table" prints them, with every element on its own line, sorted: all tables if no key
// is given. A table that does not exist is left out.
func (f *Fake) Dump(keys ...TableKey) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(keys) == 0 {
		keys = slices.SortedFunc(maps.Keys(f.tables), func(a, b TableKey) int {
			return strings.Compare(a.String(), b.String())
		})
	}
	var b strings.Builder
	for _, key := range keys {
		if t := f.tables[key]; t != nil {
			b.WriteString(t.dump(key))
		}
	}
	return b.String()
}

func (t *fakeTable) dump(key TableKey) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %v {\n", key)
	if t.comment != "" {
		fmt.Fprintf(&b, "\tcomment %q\n\n", t.comment)
	}
	for _, s := range t.sets {
		s.dump(&b, key.Family)
	}
	for _, c := range t.chains {
		c.dump(&b, key.Family)
	}
	return strings.TrimSuffix(strings.TrimSuffix(b.String(), "\n\n"), "\n") + "\n}\n"
}

func (s *fakeSet) dump(b *strings.Builder, family model.Family) {
	kind := "set"
	if s.Verdicts || s.Value != nil {
		kind = "map"
	}
	fmt.Fprintf(b, "\t%s %s {\n\t\ttypeof %s", kind, s.Name, typeofText(family, s.Key))
	switch {
	case s.Verdicts:
		b.WriteString(" : verdict")
	case s.Value != nil:
		b.WriteString(" : " + typeofText(family, s.Value))
	}
	b.WriteString("\n")
	if s.Size > 0 {
		fmt.Fprintf(b, "\t\tsize %d\n", s.Size)
	}
	if s.Interval {
		b.WriteString("\t\tflags interval\n")
	}
	if s.Dynamic {
		b.WriteString("\t\tflags dynamic,timeout\n")
	}
	if s.Comment != "" {
		fmt.Fprintf(b, "\t\tcomment %q\n", s.Comment)
	}
	if len(s.elements) > 0 {
		var texts []string
		for _, k := range slices.Sorted(maps.Keys(s.elements)) {
			text := s.elementText(family, s.elements[k])
			if timeout := s.timeouts[k]; timeout > 0 {
				text += string(appendDuration([]byte(" timeout "), timeout))
			}
			texts = append(texts, text)
		}
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(texts, ",\n\t\t\t     "))
	}
	b.WriteString("\t}\n\n")
}

// typeofText returns a key or value as nft declares it.
func typeofText(family model.Family, fields []Field) string {
	fields = slices.Clone(fields)
	for i := range fields {
		if fields[i].isNumber() {
			fields[i] = Random
		}
	}
	return string(appendFields(nil, family, fields, numbers{n: typeofModulus}))
}

// rangeText returns a range of addresses as nft prints it: as an address or prefix if it is one.
func rangeText(key string) string {
	first, _ := netip.AddrFromSlice([]byte(key[:len(key)/2]))
	last, _ := netip.AddrFromSlice([]byte(key[len(key)/2:]))
	r := netipx.IPRangeFrom(first, last)
	if p, ok := r.Prefix(); ok && p.IsSingleIP() {
		return first.String()
	} else if ok {
		return p.String()
	}
	return r.String()
}

// elementText returns an element in nft's syntax.
func (s *Set) elementText(family model.Family, e Element) string {
	text := fieldsValueText(family, s.Key, e.Key)
	if s.Interval {
		text = rangeText(e.Key)
	}
	if e.Comment != "" {
		text += fmt.Sprintf(" comment %q", e.Comment)
	}
	switch {
	case s.Verdicts:
		text += " : goto " + e.Value
	case s.Value != nil:
		value := fieldsValueText(family, s.Value, e.Value)
		text += " : " + value
	}
	return text
}

func (c *fakeChain) dump(b *strings.Builder, family model.Family) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Comment != "" {
		fmt.Fprintf(b, "\t\tcomment %q\n", c.Comment)
	}
	if c.Hook != NoHook {
		fmt.Fprintf(b, "\t\ttype %s hook %v priority %d; policy accept;\n", c.kind(), c.Hook, c.Priority)
	}
	for i := range c.rules {
		fmt.Fprintf(b, "\t\t%s\n", c.rules[i].append(nil, family))
	}
	b.WriteString("\t}\n\n")
}
