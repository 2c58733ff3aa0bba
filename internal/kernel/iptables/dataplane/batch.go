package dataplane

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
)

// IsEmpty reports whether there is nothing to do.
func (b *Batch) IsEmpty() bool {
	return !slices.ContainsFunc(b.Tables, func(t TableBatch) bool { return !t.isEmpty() })
}

func (t *TableBatch) isEmpty() bool {
	return len(t.Chains)+len(t.Delete)+len(t.Insert)+len(t.Remove) == 0
}

// WriteTo writes the batch as iptables-restore reads it. It implements [io.WriterTo].
func (b *Batch) WriteTo(w io.Writer) (int64, error) {
	out := bufio.NewWriterSize(w, 64<<10)
	total := 0
	for l := range b.lines() {
		n, _ := out.Write(l.append(out.AvailableBuffer())) // Flush returns its error too
		total += n
	}
	return int64(total), out.Flush()
}

// String returns the batch as iptables-restore reads it.
func (b *Batch) String() string {
	var s strings.Builder
	_, _ = b.WriteTo(&s)
	return s.String()
}

// line is a line of a batch.
type line struct {
	number int    // from 1
	table  int    // index into Batch.Tables
	verb   string // "*", ":", "-A", "-D", "-I", "-X" or "COMMIT"
	chain  string // of "*" the table
	rule   string
	origin string // Chain.Origin
}

func (l *line) append(b []byte) []byte {
	b = append(b, l.verb...)
	if l.verb[0] == '-' {
		b = append(b, ' ')
	}
	b = append(b, l.chain...)
	if l.verb == ":" {
		b = append(b, " - [0:0]"...)
	}
	if l.rule != "" {
		b = append(append(b, ' '), l.rule...)
	}
	return append(b, '\n')
}

func (l *line) text() string { return strings.TrimSuffix(string(l.append(nil)), "\n") }

// lines are the input lines of iptables-restore.
func (b *Batch) lines() iter.Seq[line] {
	return func(yield func(line) bool) {
		number, more := 0, true
		for i := range b.Tables {
			t := &b.Tables[i]
			if t.isEmpty() {
				continue
			}
			add := func(verb, chain, rule, origin string) {
				number++
				more = more && yield(line{number, i, verb, chain, rule, origin})
			}
			add("*", string(t.Table), "", "")
			for _, c := range t.Chains {
				add(":", c.Name, "", c.Origin)
			}
			// Declaring a chain empties it, and creates it if necessary, so that -X always finds it empty.
			for _, name := range t.Remove {
				add(":", name, "", "")
			}
			for _, c := range t.Chains {
				for _, rule := range c.Rules {
					add("-A", c.Name, rule, c.Origin)
				}
			}
			for _, r := range t.Delete {
				add("-D", r.Chain, r.Rule, "")
			}
			for _, r := range slices.Backward(t.Insert) {
				add("-I", r.Chain, r.Rule, "")
			}
			for _, name := range t.Remove {
				add("-X", name, "", "")
			}
			add("COMMIT", "", "", "")
		}
	}
}

// find returns the first line for which right returns true, or the zero line.
func (b *Batch) find(right func(line) bool) line {
	for l := range b.lines() {
		if right(l) {
			return l
		}
	}
	return line{}
}

// without returns the rest of the batch after the tables before l's have been applied, and without l, a "-D".
func (b *Batch) without(l line) *Batch {
	rest := &Batch{Tables: slices.Clone(b.Tables[l.table:])}
	t := &rest.Tables[0]
	i := slices.Index(t.Delete, BuiltinRule{l.chain, l.rule})
	t.Delete = slices.Delete(slices.Clone(t.Delete), i, i+1)
	return rest
}

// maxChainName is the maximum length of a chain name: XT_EXTENSION_MAXNAMELEN, without the terminating zero.
const maxChainName = 28

// check rejects a batch that iptables-restore would misread.
func (b *Batch) check() error {
	for l := range b.lines() {
		if strings.ContainsAny(l.rule, "\n\x00") {
			return fmt.Errorf("a rule of chain %s has more than one line: %q", l.chain, l.rule)
		}
		if l.verb != "COMMIT" {
			if err := checkChainName(l.chain); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkChainName(name string) error {
	if name == "" || len(name) > maxChainName || name[0] == '-' || name[0] == '!' ||
		strings.ContainsAny(name, " \t\r\n\x00\"") {
		return fmt.Errorf("chain %q: not a chain name of at most %d bytes", name, maxChainName)
	}
	return nil
}
