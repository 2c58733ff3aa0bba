package dataplane

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Dump returns all rules as iptables-save prints them, without the lines with the time. Tables with neither rules nor
// user-defined chains are left out.
func (f *Fake) Dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, t := range f.tables {
		if !t.isEmpty() {
			_, _ = t.dump().WriteTo(&b)
		}
	}
	return b.String()
}

func (t *fakeTable) isEmpty() bool {
	for name, c := range t.chains {
		if len(c.rules) > 0 || !t.isBuiltin(name) || c.policy != "ACCEPT" {
			return false
		}
	}
	return true
}

func (t *fakeTable) dump() *bytes.Buffer {
	b := &bytes.Buffer{}
	own := slices.DeleteFunc(slices.Sorted(maps.Keys(t.chains)), t.isBuiltin)
	fmt.Fprintf(b, "*%s\n", t.name)
	for _, name := range t.builtin {
		fmt.Fprintf(b, ":%s %s [0:0]\n", name, t.chains[name].policy)
	}
	for _, name := range own {
		fmt.Fprintf(b, ":%s - [0:0]\n", name)
	}
	for _, name := range slices.Concat(t.builtin, own) {
		for _, r := range t.chains[name].rules {
			l := line{verb: "-A", chain: name, rule: r.text}
			b.Write(l.append(b.AvailableBuffer()))
		}
	}
	b.WriteString("COMMIT\n")
	return b
}

// Load replaces the tables in a dump, as iptables-restore does without --noflush, and leaves others alone. So
// "*nat\nCOMMIT\n" empties a table. It counts as another program's change: it is not one of Batches.
func (f *Fake) Load(dump string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := fakeApply{fake: f}
	var loaded []*fakeTable
	number := 0
	err := readSave(strings.NewReader(dump), func(text []byte) error {
		number++
		l := strings.TrimSpace(string(text))
		if l == "" || l[0] == '#' {
			return nil
		}
		if err := a.load(l); err != nil {
			return fmt.Errorf("line %d, %q: %w", number, l, err)
		}
		if l == "COMMIT" {
			loaded, a.table = append(loaded, a.table), nil
		}
		return nil
	})
	if err == nil && a.table != nil {
		err = fmt.Errorf("table %s: no COMMIT", a.table.name)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", f.features.Family, err)
	}
	for _, t := range loaded {
		i := slices.IndexFunc(f.tables, func(x *fakeTable) bool { return x.name == t.name })
		f.tables[i] = t
	}
	return nil
}

func (a *fakeApply) load(l string) error {
	if l[0] == '*' {
		if a.fake.table(Table(l[1:])) == nil {
			return ErrNoTable
		}
		a.table, a.saved = newFakeTable(Table(l[1:])), map[string]*fakeChain{}
		return nil
	}
	if a.table == nil {
		return fmt.Errorf("not in a table")
	}
	verb, rest, _ := strings.Cut(l, " ")
	switch {
	case l == "COMMIT":
		return a.line(&line{verb: "COMMIT"})
	case l[0] == ':':
		name, policy := verb[1:], strings.Fields(rest + " -")[0]
		if c := a.table.chains[name]; c != nil && a.table.isBuiltin(name) {
			c.policy = policy
			return nil
		}
		if err := checkChainName(name); err != nil {
			return err
		}
		return a.declare(name)
	case verb == "-A":
		chain, rule, _ := strings.Cut(rest, " ")
		return a.line(&line{verb: verb, chain: chain, rule: rule})
	}
	return fmt.Errorf("not understood")
}
