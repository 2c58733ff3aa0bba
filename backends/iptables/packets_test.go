package iptables_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// walker follows first packets through rules as iptables-save prints them. It knows what the backend uses.
type walker struct {
	t      testing.TB
	chains map[string][][]string // rules in words, by table and chain
	host   []netip.Addr
}

func newWalker(t testing.TB, dump string, host []netip.Addr) *walker {
	w := &walker{t: t, chains: map[string][][]string{}, host: host}
	table := ""
	for line := range strings.Lines(dump) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "*") {
			table = line[1:]
		}
		if rest, ok := strings.CutPrefix(line, "-A "); ok {
			words := splitWords(rest)
			at := table + " " + words[0]
			w.chains[at] = append(w.chains[at], words[1:])
		}
	}
	return w
}

func splitWords(s string) (words []string) {
	quoted := false
	for _, f := range strings.FieldsFunc(s, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	}) {
		words = append(words, strings.Trim(f, `"`))
	}
	return words
}

// packet is the first packet of a connection.
type packet struct {
	src     netip.Addr
	dst     netip.AddrPort
	proto   model.Protocol
	in      string
	mark    uint64
	dnat    bool
	snat    bool
	chances []bool // what the random matches say, in order
	asked   int
}

// chance returns the result of the next random match: as prescribed, or true.
func (p *packet) chance() bool {
	if p.asked == len(p.chances) {
		p.chances = append(p.chances, true)
	}
	p.asked++
	return p.chances[p.asked-1]
}

// fates returns all that can happen to a flow, whose packets come with a mark.
func (w *walker) fates(f oracle.Flow, mark uint64) []string {
	var fates []string
	for chances := []bool{}; ; {
		p := &packet{src: f.Source, dst: f.Destination, proto: f.Protocol, mark: mark, chances: chances}
		if f.From == oracle.LocalPod {
			p.in = "veth7"
		} else if f.From != oracle.Node {
			p.in = "eth0"
		}
		fates = append(fates, w.fate(p))
		chances = p.chances
		for len(chances) > 0 && !chances[len(chances)-1] {
			chances = chances[:len(chances)-1]
		}
		if len(chances) == 0 {
			slices.Sort(fates)
			return slices.Compact(fates)
		}
		chances = slices.Clone(chances)
		chances[len(chances)-1] = false
	}
}

func (w *walker) fate(p *packet) string {
	first, mark := "PREROUTING", p.mark
	if p.in == "" {
		first = "OUTPUT"
	}
	w.walk(p, "nat", first)
	if !p.dnat && p.mark != mark {
		return fmt.Sprintf("not ours, and the mark was %#x and is %#x", mark, p.mark)
	}
	hooks := []string{"FORWARD"}
	switch isLocal := w.isLocal(p.dst.Addr()); {
	case p.in == "":
		hooks = []string{"OUTPUT"}
	case isLocal:
		hooks = []string{"INPUT"}
	}
	for _, hook := range hooks {
		if verdict, _ := w.walk(p, "filter", hook); verdict == "DROP" || verdict == "REJECT" {
			if p.dnat {
				return "refused after all"
			}
			return verdict
		}
	}
	w.walk(p, "nat", "POSTROUTING")
	switch {
	case !p.dnat && p.snat:
		return "masqueraded, but not ours"
	case !p.dnat:
		return "not ours"
	case p.mark != mark&^(1<<14):
		return fmt.Sprintf("delivered with the mark %#x", p.mark)
	}
	return fmt.Sprintf("to %v, source translated: %v", p.dst, p.snat)
}

func (w *walker) isLocal(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(w.host, a) }

// walk goes through a chain. done: nothing more happens in the table.
func (w *walker) walk(p *packet, table, chain string) (verdict string, done bool) {
	for _, rule := range w.chains[table+" "+chain] {
		target, follow := w.match(p, rule)
		if target == nil {
			continue
		}
		switch target[0] {
		case "ACCEPT", "DROP", "REJECT":
			return target[0], true
		case "RETURN":
			return "", false
		case "MARK":
			value, mask, _ := strings.Cut(target[2], "/")
			v, err := strconv.ParseUint(value, 0, 32)
			require.NoError(w.t, err)
			m, err := strconv.ParseUint(mask, 0, 32)
			require.NoError(w.t, err)
			p.mark = p.mark&^m ^ v
		case "DNAT":
			p.dst, p.dnat = netip.MustParseAddrPort(target[2]), true
			return "ACCEPT", true
		case "MASQUERADE":
			p.snat = true
			return "ACCEPT", true
		default:
			verdict, done := w.walk(p, table, target[0])
			if done || follow == "-g" {
				return verdict, done
			}
		}
	}
	return "", false
}

// match returns the target of a rule with its arguments, nil if the packet does not match.
func (w *walker) match(p *packet, words []string) (target []string, follow string) {
	not := false
	for i := 0; i < len(words); i++ {
		ok, arg := true, ""
		if i+1 < len(words) {
			arg = words[i+1]
		}
		switch word := words[i]; word {
		case "!":
			not = true
			continue
		case "-s":
			ok = within(p.src, arg)
		case "-d":
			ok = within(p.dst.Addr(), arg)
		case "-i":
			ok = p.in == arg || strings.HasSuffix(arg, "+") && strings.HasPrefix(p.in, arg[:len(arg)-1])
		case "-p":
			ok = arg == strings.ToLower(p.proto.String())
		case "--dport":
			first, last, isRange := strings.Cut(arg, ":")
			if !isRange {
				last = first
			}
			a, _ := strconv.Atoi(first)
			b, _ := strconv.Atoi(last)
			ok = int(p.dst.Port()) >= a && int(p.dst.Port()) <= b
		case "--mark":
			v, _ := strconv.ParseUint(strings.Split(arg, "/")[0], 0, 32)
			ok = p.mark&v == v
		case "--ctstate":
			ok = strings.Contains(arg, "NEW") || strings.Contains(arg, "DNAT") && p.dnat
		case "--src-type":
			ok = w.isLocal(p.src)
		case "--dst-type":
			ok = w.isLocal(p.dst.Addr())
		case "--probability":
			ok = p.chance()
		case "--bytecode": // compares source and destination: tried with a kernel elsewhere
			ok = p.src == p.dst.Addr()
		case "--update":
			ok, i = false, i-1 // no client was here before
		case "--set", "--reap", "--rsource":
			i--
		case "-m", "--comment", "--mode", "--name", "--mask", "--seconds":
		case "-j", "-g":
			return words[i+1:], word
		default:
			w.t.Fatalf("%q is not known, in %q", word, words)
		}
		if ok == not {
			return nil, ""
		}
		not = false
		i++
	}
	return nil, ""
}

// within reports whether an address agrees with another one in the bits of a mask or prefix.
func within(a netip.Addr, masked string) bool {
	value, mask, _ := strings.Cut(masked, "/")
	if bits, err := strconv.Atoi(mask); err == nil {
		return netip.PrefixFrom(netip.MustParseAddr(value), bits).Contains(a)
	}
	x, v, m := a.AsSlice(), netip.MustParseAddr(value).AsSlice(), netip.MustParseAddr(mask).AsSlice()
	for i := range x {
		if x[i]&m[i] != v[i] {
			return false
		}
	}
	return true
}

// expected returns what may be instead of fates, by the oracle. Services masquerade whatever others have marked.
func expected(o oracle.Outcome, marked bool) (alternatives [][]string) {
	for _, out := range append([]oracle.Outcome{o}, o.AlsoAllowed...) {
		var fates []string
		switch out.Verdict {
		case oracle.Deliver:
			for _, d := range out.Endpoints {
				fates = append(fates, fmt.Sprintf("to %v, source translated: %v", d.Endpoint, d.SourceNAT || marked))
			}
		case oracle.Reject:
			fates = []string{"REJECT"}
		case oracle.Drop:
			fates = []string{"DROP"}
		case oracle.NotOurs:
			fates = []string{"not ours"}
		}
		slices.Sort(fates)
		alternatives = append(alternatives, slices.Compact(fates))
	}
	return alternatives
}
