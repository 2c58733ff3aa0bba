package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// parseRule checks a rule as iptables does, and that iptables-save prints it as it is.
func parseRule(features Features, table Table, chain, text string) (fakeRule, error) {
	p := ruleParser{features: features, table: table, chain: chain, tokens: fields(text)}
	p.rule = fakeRule{text: text, hooks: anywhere}
	err := p.parse()
	if err == nil {
		err = p.finish()
	}
	if err == nil {
		if printed := strings.Join(p.printed, " "); printed != text {
			err = fmt.Errorf("iptables-save would print: %s", printed)
		}
	}
	return p.rule, err
}

// fields splits a rule at its spaces as iptables-restore does: what is quoted is one field.
func fields(rule string) []string {
	var all []string
	for {
		rule = strings.TrimLeft(rule, " \t")
		if rule == "" {
			return all
		}
		var field string
		field, rule = firstField(rule)
		all = append(all, field)
	}
}

// firstField splits a rule at its first space as iptables-restore does: what is quoted is one field.
func firstField(s string) (field, rest string) {
	if end := strings.IndexAny(s, " \t\""); end < 0 {
		return s, ""
	} else if s[end] != '"' {
		return s[:end], s[end:]
	}
	var b strings.Builder
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case !quoted && (c == ' ' || c == '\t'):
			return b.String(), s[i:]
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}

type ruleParser struct {
	features Features
	table    Table
	chain    string
	tokens   []string
	printed  []string
	rule     fakeRule

	rank     int // of the last option: they are printed in a fixed order
	protocol string
	match    string          // whose options come
	target   string          // whose options come, after -j
	seen     map[string]bool // options of the match or target
}

// next returns the next token.
func (p *ruleParser) next() (string, error) {
	if len(p.tokens) == 0 {
		return "", errors.New("an argument is missing at the end")
	}
	t := p.tokens[0]
	p.tokens = p.tokens[1:]
	return t, nil
}

func (p *ruleParser) parse() error {
	for len(p.tokens) > 0 {
		option, _ := p.next()
		not := option == "!"
		if not {
			p.printed = append(p.printed, "!")
			var err error
			if option, err = p.next(); err != nil {
				return err
			}
		}
		p.printed = append(p.printed, option)
		if err := p.option(option, not); err != nil {
			return fmt.Errorf("%s: %w", option, err)
		}
	}
	return nil
}

// option reads the arguments of an option.
func (p *ruleParser) option(option string, not bool) error {
	if strings.HasPrefix(option, "--") {
		return p.extensionOption(option, not)
	}
	rank := slices.Index([]string{"-s", "-d", "-i", "-o", "-p", "-m", "-j"}, strings.Replace(option, "-g", "-j", 1)) + 1
	switch {
	case rank == 0:
		return errors.New("not known")
	case rank < p.rank || rank == p.rank && option != "-m":
		return errors.New("iptables-save prints it before what comes before it")
	case not && rank > 5:
		return errors.New("cannot be negated")
	}
	p.rank = rank
	value, err := p.next()
	if err != nil {
		return err
	}
	p.printed = append(p.printed, value)
	switch option {
	case "-s", "-d":
		return p.prefix(value)
	case "-i", "-o":
		return p.device(option, value)
	case "-p":
		if !slices.Contains([]string{"tcp", "udp", "sctp", p.icmp()}, value) {
			return fmt.Errorf("not a protocol that is known here: %q", value)
		}
		if !not {
			p.protocol = value
		}
		return nil
	case "-m":
		return p.startMatch(value)
	default:
		return p.startTarget(option, value)
	}
}

func (p *ruleParser) device(option, name string) error {
	if len(name) > 15 || name == "" {
		return fmt.Errorf("not the name of a network device: %q", name)
	}
	h := builtinHook(p.chain)
	if option == "-i" && h&(atOutput|atPostrouting) != 0 || option == "-o" && h&(atPrerouting|atInput) != 0 {
		return fmt.Errorf("cannot be used in %s", p.chain)
	}
	return nil
}

func (p *ruleParser) startMatch(name string) error {
	if err := p.finish(); err != nil {
		return err
	}
	if !p.knowsMatch(name) {
		return fmt.Errorf("match %q is not known here", name)
	}
	p.match, p.seen = name, map[string]bool{}
	return nil
}

func (p *ruleParser) startTarget(option, name string) error {
	if err := p.finish(); err != nil {
		return err
	}
	p.match, p.seen = "", map[string]bool{}
	t, known := targetOf(name)
	switch {
	case !known:
		if err := checkChainName(name); err != nil {
			return err
		}
		p.rule.jump = name
	case option == "-g":
		return fmt.Errorf("%s is not a chain", name)
	case t.tables != nil && !slices.Contains(t.tables, p.table):
		return fmt.Errorf("target %s cannot be used in table %s", name, p.table)
	default:
		p.target, p.rule.hooks = name, t.hooks
	}
	return nil
}

// extensionOption reads the arguments of an option of the match or target that came last.
func (p *ruleParser) extensionOption(option string, not bool) error {
	of := p.match + p.target // one of them is ""
	arguments, known := p.extension(of, option)
	switch {
	case of == "" || !known:
		return errors.New("unknown option")
	case p.seen[option]:
		return errors.New("twice")
	case p.isLate(of, option):
		return errors.New("iptables-save prints it before what comes before it")
	case not && p.rank == 7:
		return errors.New("cannot be negated")
	}
	p.seen[option] = true
	for _, check := range arguments {
		value, err := p.next()
		if err != nil {
			return err
		}
		if err := check(value); err != nil {
			return err
		}
		switch option {
		case "--comment":
			value = Quote(value)
		case "--bytecode":
			value = `"` + value + `"`
		}
		p.printed = append(p.printed, value)
	}
	return nil
}

// isLate reports whether an option that is printed later has been seen.
func (p *ruleParser) isLate(of, option string) bool {
	order := printOrder(of)
	i := slices.Index(order, option)
	return i >= 0 && slices.ContainsFunc(order[i:], func(o string) bool { return p.seen[o] })
}

// finish checks that the match or target that came last is complete.
func (p *ruleParser) finish() error {
	of := p.match + p.target // one of them is ""
	for _, option := range p.needs(of) {
		if !p.seen[option] {
			return fmt.Errorf("%s needs %s, and iptables-save prints it", of, option)
		}
	}
	switch of {
	case "tcp", "udp", "sctp":
		if p.protocol != of {
			return fmt.Errorf("match %s needs -p %s", of, of)
		}
	case "multiport", "DNAT", "REDIRECT":
		// DNAT without a port needs no protocol, but here there is always one.
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.protocol) {
			return fmt.Errorf("%s needs a protocol that has ports", of)
		}
	}
	return nil
}
