package dataplane

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// IsEmpty tells whether nothing is to be done.
func (b *Batch) IsEmpty() bool {
	return !slices.ContainsFunc(b.Tables, func(t TableBatch) bool { return !t.isEmpty() })
}

func (t *TableBatch) isEmpty() bool {
	return len(t.Chains)+len(t.Delete)+len(t.Insert)+len(t.Append)+len(t.Remove) == 0
}

// WriteTo writes the batch as iptables-restore reads it. It implements [io.WriterTo].
func (b *Batch) WriteTo(w io.Writer) (int64, error) {
	buffered := bufio.NewWriterSize(w, 64<<10)
	n := int64(0)
	var buf []byte
	var err error
	b.lines(func(l *line) bool {
		buf = l.append(buf[:0])
		n += int64(len(buf))
		_, err = buffered.Write(buf)
		return err == nil
	})
	if err == nil {
		err = buffered.Flush()
	}
	return n, err
}

// String returns the batch as iptables-restore reads it.
func (b *Batch) String() string {
	var s strings.Builder
	_, _ = b.WriteTo(&s)
	return s.String()
}

// line is a line of a batch.
type line struct {
	table  int    // index into Batch.Tables
	verb   string // "*", ":", "-A", "-D", "-I", "-X" or "COMMIT"
	chain  string // of "*" the table
	rule   string
	index  int    // of "-D", into TableBatch.Delete
	origin string // Chain.Origin
}

func (l *line) append(b []byte) []byte {
	b = append(b, l.verb...)
	switch l.verb {
	case "*":
		b = append(b, l.chain...)
	case ":":
		b = append(b, l.chain...)
		b = append(b, " - [0:0]"...)
	case "-X":
		b = append(append(b, ' '), l.chain...)
	case "-A", "-I", "-D":
		b = append(append(b, ' '), l.chain...)
		if l.rule != "" {
			b = append(append(b, ' '), l.rule...)
		}
	}
	return append(b, '\n')
}

func (l *line) text() string { return strings.TrimSuffix(string(l.append(nil)), "\n") }

// lines calls back for every line in order, until it is told to stop. The line is only valid until the next one.
func (b *Batch) lines(yield func(*line) bool) {
	for i := range b.Tables {
		if t := &b.Tables[i]; !t.isEmpty() && !t.lines(i, yield) {
			return
		}
	}
}

func (t *TableBatch) lines(table int, yield func(*line) bool) bool {
	var l line
	next := func(verb, chain, rule, origin string, index int) bool {
		l = line{table: table, verb: verb, chain: chain, rule: rule, origin: origin, index: index}
		return yield(&l)
	}
	if !next("*", string(t.Table), "", "", 0) {
		return false
	}
	for i := range t.Chains {
		if !next(":", t.Chains[i].Name, "", t.Chains[i].Origin, 0) {
			return false
		}
	}
	// Declaring a chain empties it, or makes it if it is not there, so that -X always finds it empty.
	for _, name := range t.Remove {
		if !next(":", name, "", "", 0) {
			return false
		}
	}
	for i := range t.Chains {
		c := &t.Chains[i]
		for _, rule := range c.Rules {
			if !next("-A", c.Name, rule, c.Origin, 0) {
				return false
			}
		}
	}
	for i, r := range t.Delete {
		if !next("-D", r.Chain, r.Rule, "", i) {
			return false
		}
	}
	for _, r := range slices.Backward(t.Insert) {
		if !next("-I", r.Chain, r.Rule, "", 0) {
			return false
		}
	}
	for _, r := range t.Append {
		if !next("-A", r.Chain, r.Rule, "", 0) {
			return false
		}
	}
	for _, name := range t.Remove {
		if !next("-X", name, "", "", 0) {
			return false
		}
	}
	return next("COMMIT", "", "", "", 0)
}

// find returns the first line that is the right one, with its number from 1, or 0.
func (b *Batch) find(right func(number int, l *line) bool) (found line, number int) {
	n := 0
	b.lines(func(l *line) bool {
		n++
		if right(n, l) {
			found, number = *l, n
		}
		return number == 0
	})
	return found, number
}

// without returns what is left to do of a batch when its tables before the one that l belongs to are done, and l, a "-D",
// is not wanted any more.
func (b *Batch) without(l line) *Batch {
	rest := &Batch{Tables: slices.Clone(b.Tables[l.table:])}
	rest.Tables[0].Delete = slices.Delete(slices.Clone(rest.Tables[0].Delete), l.index, l.index+1)
	return rest
}

// maxChainName is how long the name of a chain may be: XT_EXTENSION_MAXNAMELEN, without the end of the string.
const maxChainName = 28

// check refuses what would be read as something else than it is.
func (b *Batch) check() error {
	var err error
	b.lines(func(l *line) bool {
		switch l.verb {
		case "COMMIT":
		case "*", ":", "-X":
			err = checkChainName(l.chain)
		default:
			if err = checkChainName(l.chain); err == nil && strings.ContainsAny(l.rule, "\n\x00") {
				err = fmt.Errorf("a rule of chain %s has more than one line: %q", l.chain, l.rule)
			}
		}
		return err == nil
	})
	return err
}

func checkChainName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a chain without a name")
	case len(name) > maxChainName:
		return fmt.Errorf("chain %s: the name is longer than %d bytes", name, maxChainName)
	case strings.ContainsAny(name, " \t\r\n\x00\"") || name[0] == '-' || name[0] == '!':
		return fmt.Errorf("chain %q: not a name for a chain", name)
	}
	return nil
}
