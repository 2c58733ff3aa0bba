package dataplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// readSave calls back for each line of what iptables-save prints, without its end. The slice is only valid until then.
func readSave(r io.Reader, each func(line []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), math.MaxInt32)
	for lines.Scan() {
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// saveParser picks from the lines of iptables-save what Read returns.
type saveParser struct {
	table   Table
	prefix  string
	state   State
	inTable bool
	builtin map[string]bool
	name    string // of the last chain of ours: rules of one chain come together, so the map is asked once
	rules   []string
}

func newSaveParser(table Table, prefix string) *saveParser {
	state := State{Chains: map[string][]string{}}
	return &saveParser{table: table, prefix: prefix, builtin: map[string]bool{}, state: state}
}

func (p *saveParser) line(l []byte) error {
	if len(l) == 0 || l[0] == '#' {
		// iptables-nft has no other way to say that it cannot read a table.
		if class := classify(string(l)); class != nil {
			return fmt.Errorf("%w: %s", class, bytes.TrimLeft(l, "# "))
		}
		return nil
	}
	switch {
	case l[0] == '*':
		p.inTable = string(l[1:]) == string(p.table)
	case !p.inTable:
	case string(l) == "COMMIT":
		p.flush()
		p.inTable = false
	case l[0] == ':':
		name, rest, _ := bytes.Cut(l[1:], []byte(" "))
		if len(rest) > 0 && rest[0] != '-' {
			p.builtin[string(name)] = true
		} else if bytes.HasPrefix(name, []byte(p.prefix)) {
			p.state.Chains[string(name)] = nil
		}
	case bytes.HasPrefix(l, []byte("-A ")):
		chain, rule, _ := bytes.Cut(l[3:], []byte(" "))
		p.rule(chain, normalize(rule))
	default:
		return fmt.Errorf("iptables-save: not understood: %q", l)
	}
	return nil
}

func (p *saveParser) rule(chain, rule []byte) {
	switch {
	case p.builtin[string(chain)]:
		if !bytes.Contains(rule, []byte(p.prefix)) {
			return
		}
		if r := string(rule); strings.HasPrefix(Target(r), p.prefix) {
			p.state.Jumps = append(p.state.Jumps, BuiltinRule{Chain: string(chain), Rule: r})
		}
	case bytes.HasPrefix(chain, []byte(p.prefix)):
		if string(chain) != p.name {
			p.flush()
			p.name = string(chain)
		}
		p.rules = append(p.rules, string(rule))
	}
}

func (p *saveParser) end() (*State, error) {
	if p.inTable {
		return nil, errors.New("iptables-save: no COMMIT at the end")
	}
	return &p.state, nil
}

func (p *saveParser) flush() {
	if len(p.rules) > 0 {
		p.state.Chains[p.name] = append(p.state.Chains[p.name], p.rules...)
	}
	p.rules = p.rules[:0]
}
