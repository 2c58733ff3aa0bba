package dataplane

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// argument checks an argument of an option.
type argument func(value string) error

// extension returns the arguments of an option of a match or target.
func (p *ruleParser) extension(of, option string) ([]argument, bool) {
	args := func(a ...argument) ([]argument, bool) { return a, true }
	switch of + " " + option {
	case "comment --comment":
		return args(comment)
	case "tcp --dport", "tcp --sport", "udp --dport", "udp --sport", "sctp --dport", "sctp --sport":
		return args(portRange)
	case "multiport --dports", "multiport --sports", "multiport --ports":
		return args(portList)
	case "statistic --mode":
		return args(oneOf("random", "nth"))
	case "statistic --probability":
		return args(probability)
	case "statistic --every", "statistic --packet", "recent --seconds", "recent --hitcount":
		return args(number)
	case "mark --mark", "connmark --mark":
		return args(mark(false))
	case "MARK --set-xmark", "CONNMARK --set-xmark":
		return args(mark(true))
	case "conntrack --ctstate":
		return args(listOf("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"))
	case "conntrack --ctstatus":
		return args(listOf("EXPECTED", "SEEN_REPLY", "ASSURED", "CONFIRMED"))
	case "conntrack --ctorigdst", "conntrack --ctorigsrc", "conntrack --ctreplsrc", "conntrack --ctrepldst":
		return args(p.address)
	case "conntrack --ctorigdstport", "conntrack --ctorigsrcport", "conntrack --ctproto":
		return args(number)
	case "conntrack --ctdir":
		return args(oneOf("ORIGINAL", "REPLY"))
	case "addrtype --dst-type", "addrtype --src-type":
		return args(listOf("UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE",
			"UNREACHABLE", "PROHIBIT"))
	case "addrtype --limit-iface-in", "addrtype --limit-iface-out",
		"recent --set", "recent --rcheck", "recent --update", "recent --remove", "recent --reap",
		"recent --rsource", "recent --rdest",
		"set --return-nomatch", "SET --exist":
		return args()
	case "recent --name", "set --name":
		return args(name)
	case "recent --mask":
		return args(p.fullMask)
	case "set --match-set", "SET --add-set", "SET --del-set":
		return args(name, p.setFlags)
	case "SET --timeout":
		return args(number)
	case "bpf --bytecode":
		return args(bytecode)
	case "iprange --src-range", "iprange --dst-range":
		return args(p.addressRange)
	case "DNAT --to-destination":
		return args(p.destination)
	case "SNAT --to-source":
		return args(p.address)
	case "REDIRECT --to-ports", "MASQUERADE --to-ports":
		return args(func(value string) error { return portRange(strings.Replace(value, "-", ":", 1)) })
	case "MASQUERADE --random", "MASQUERADE --random-fully", "SNAT --random", "SNAT --random-fully", "DNAT --random",
		"DNAT --persistent":
		return args()
	case "REJECT --reject-with":
		if p.features.Family == model.IPv6 {
			return args(oneOf("icmp6-port-unreachable", "icmp6-addr-unreachable", "icmp6-adm-prohibited",
				"icmp6-no-route", "tcp-reset"))
		}
		return args(oneOf("icmp-port-unreachable", "icmp-host-unreachable", "icmp-net-unreachable",
			"icmp-proto-unreachable", "icmp-admin-prohibited", "tcp-reset"))
	}
	return nil, false
}

func (p *ruleParser) knowsMatch(name string) bool {
	return slices.Contains([]string{"comment", "tcp", "udp", "sctp", "multiport", "statistic", "mark", "connmark",
		"conntrack",
		"addrtype", "recent", "set", "iprange", "bpf"}, name)
}

// needs lists the options that a match or target requires, or is never printed without.
func (p *ruleParser) needs(of string) []string {
	switch of {
	case "comment":
		return []string{"--comment"}
	case "statistic":
		if p.seen["--every"] || p.seen["--packet"] {
			return []string{"--mode", "--every", "--packet"}
		}
		return []string{"--mode", "--probability"}
	case "mark", "connmark":
		return []string{"--mark"}
	case "MARK", "CONNMARK":
		return []string{"--set-xmark"}
	case "recent":
		if p.seen["--rdest"] {
			return []string{"--name", "--mask"}
		}
		return []string{"--name", "--mask", "--rsource"}
	case "bpf":
		return []string{"--bytecode"}
	case "set":
		return []string{"--match-set"}
	case "DNAT":
		return []string{"--to-destination"}
	case "SNAT":
		return []string{"--to-source"}
	case "REDIRECT":
		return []string{"--to-ports"}
	case "REJECT":
		return []string{"--reject-with"}
	}
	return nil
}

// printOrder is the order in which iptables-save prints options.
func printOrder(of string) []string {
	switch of {
	case "tcp", "udp", "sctp":
		return []string{"--sport", "--dport"}
	case "statistic":
		return []string{"--mode", "--probability", "--every", "--packet"}
	case "conntrack":
		return []string{"--ctstate", "--ctproto", "--ctorigsrc", "--ctorigdst", "--ctreplsrc", "--ctrepldst",
			"--ctorigsrcport", "--ctorigdstport", "--ctstatus", "--ctdir"}
	case "addrtype":
		return []string{"--src-type", "--dst-type", "--limit-iface-in", "--limit-iface-out"}
	case "recent":
		return []string{"--set", "--rcheck", "--update", "--remove", "--seconds", "--reap", "--hitcount", "--name",
			"--mask", "--rsource", "--rdest"}
	case "iprange":
		return []string{"--src-range", "--dst-range"}
	case "DNAT":
		return []string{"--to-destination", "--random", "--persistent"}
	case "MASQUERADE":
		return []string{"--to-ports", "--random", "--random-fully"}
	case "SNAT":
		return []string{"--to-source", "--random", "--random-fully"}
	case "SET":
		return []string{"--add-set", "--del-set", "--exist", "--timeout"}
	}
	return nil
}

type fakeTarget struct {
	tables []Table // those that it is for, nil: all
	hooks  hooks
}

// targetOf returns the properties of a target that is not a chain.
func targetOf(name string) (fakeTarget, bool) {
	switch name {
	case "ACCEPT", "RETURN", "MARK", "CONNMARK", "SET":
		return fakeTarget{hooks: anywhere}, true
	case "DROP":
		return fakeTarget{[]Table{Filter, Mangle}, anywhere}, true
	case "REJECT":
		return fakeTarget{[]Table{Filter}, atInput | atForward | atOutput}, true
	case "DNAT", "REDIRECT":
		return fakeTarget{[]Table{NAT}, atPrerouting | atOutput}, true
	case "SNAT":
		return fakeTarget{[]Table{NAT}, atInput | atPostrouting}, true
	case "MASQUERADE":
		return fakeTarget{[]Table{NAT}, atPostrouting}, true
	}
	return fakeTarget{}, false
}

func (p *ruleParser) icmp() string {
	if p.features.Family == model.IPv6 {
		return "ipv6-icmp"
	}
	return "icmp"
}

func (p *ruleParser) parseAddr(value string) (netip.Addr, error) {
	a, err := netip.ParseAddr(value)
	if err == nil && (model.FamilyOf(a) != p.features.Family || Address(a) != value) {
		err = fmt.Errorf("not an address of %v as iptables-save prints it: %q", p.features.Family, value)
	}
	return a, err
}

func (p *ruleParser) address(value string) error {
	_, err := p.parseAddr(value)
	return err
}

// prefix checks the argument of -s and -d: an address with a length, which is always printed, or with a mask that is
// not a prefix.
func (p *ruleParser) prefix(value string) error {
	address, length, _ := strings.Cut(value, "/")
	a, err := p.parseAddr(address)
	if err != nil {
		return err
	}
	if m, err := p.parseAddr(length); err == nil {
		bits, ones := a.AsSlice(), m.AsSlice()
		for i := range bits {
			bits[i] &= ones[i]
		}
		if a, _ = netip.AddrFromSlice(bits); Masked(a, m) != value {
			return fmt.Errorf("iptables-save would print %s", Masked(a, m))
		}
		return nil
	}
	x, err := netip.ParsePrefix(value)
	if err != nil {
		return fmt.Errorf("not an address with a length or mask: %q", value)
	}
	if x != x.Masked() || fmt.Sprintf("%s/%d", Address(x.Addr()), x.Bits()) != value || x.Bits() == 0 {
		return fmt.Errorf("not as iptables-save prints it: %q", value)
	}
	return nil
}

func (p *ruleParser) addressRange(value string) error {
	from, to, _ := strings.Cut(value, "-")
	a, err := p.parseAddr(from)
	if err != nil {
		return err
	}
	b, err := p.parseAddr(to)
	if err == nil && b.Less(a) {
		err = fmt.Errorf("an empty range: %s", value)
	}
	return err
}

func (p *ruleParser) destination(value string) error {
	to, err := netip.ParseAddrPort(value)
	if err != nil || to.String() != value || to.Port() == 0 {
		return fmt.Errorf("not an address and port: %q", value)
	}
	return p.address(Address(to.Addr()))
}

func (p *ruleParser) fullMask(value string) error {
	if p.features.Family == model.IPv6 {
		return oneOf("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")(value)
	}
	return oneOf("255.255.255.255")(value)
}

func (p *ruleParser) setFlags(value string) error {
	for f := range strings.SplitSeq(value, ",") {
		if f != "src" && f != "dst" {
			return fmt.Errorf("neither src nor dst: %q", f)
		}
	}
	return nil
}

func comment(value string) error {
	if len(value) > 255 {
		return fmt.Errorf("%d bytes, and 255 is most", len(value))
	}
	return nil
}

func name(value string) error {
	if value == "" || len(value) > 31 || Quote(value) != value && !strings.ContainsAny(value, ":.") ||
		strings.ContainsAny(value, " /\"") {
		return fmt.Errorf("not a name: %q", value)
	}
	return nil
}

func number(value string) error {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != value {
		return fmt.Errorf("not a number: %q", value)
	}
	return nil
}

func port(value string) error {
	if n, err := strconv.ParseUint(value, 10, 16); err != nil || strconv.FormatUint(n, 10) != value {
		return fmt.Errorf("not a port: %q", value)
	}
	return nil
}

func portRange(value string) error {
	from, to, isRange := strings.Cut(value, ":")
	err := port(from)
	if isRange {
		err = errors.Join(err, port(to))
	}
	if value == "0:65535" {
		err = errors.New("iptables-save leaves out a range of all ports")
	}
	return err
}

// bytecode checks "2,48 0 0 9,6 0 0 1": the number of instructions, and four numbers for each.
func bytecode(value string) error {
	count, all, _ := strings.Cut(value, ",")
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > 64 || strings.Count(all, ",") != n-1 {
		return fmt.Errorf("not BPF: %q", value)
	}
	for instruction := range strings.SplitSeq(all, ",") {
		four := strings.Fields(instruction)
		if len(four) != 4 {
			return fmt.Errorf("not a BPF instruction: %q", instruction)
		}
		for _, x := range four {
			if err := number(x); err != nil {
				return err
			}
		}
	}
	return nil
}

func portList(value string) error {
	all := strings.Split(value, ",")
	n := len(all)
	for _, x := range all {
		if err := portRange(x); err != nil {
			return err
		}
		n += strings.Count(x, ":")
	}
	if n > 15 {
		return errors.New("more than 15 ports; a range counts twice")
	}
	return nil
}

func probability(value string) error {
	const one = 1 << 31
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || v < 0 || v > 1 {
		return fmt.Errorf("not a probability: %q", value)
	}
	if printed := strconv.FormatFloat(math.Round(v*one)/one, 'f', 11, 64); printed != value {
		return fmt.Errorf("iptables-save would print %s, see Probability", printed)
	}
	return nil
}

// mark checks value[/mask] in hexadecimal; the mask is printed always, or only if it leaves something out.
func mark(always bool) argument {
	return func(value string) error {
		v, m, masked := strings.Cut(value, "/")
		for _, x := range []string{v, m} {
			n, err := strconv.ParseUint(strings.TrimPrefix(x, "0x"), 16, 32)
			if (masked || x == v) && (err != nil || fmt.Sprintf("%#x", n) != x) {
				return fmt.Errorf("not as iptables-save prints it: %q", value)
			}
		}
		if always && !masked || !always && m == "0xffffffff" {
			return fmt.Errorf("not as iptables-save prints it: %q", value)
		}
		return nil
	}
}

func oneOf(all ...string) argument {
	return func(value string) error {
		if !slices.Contains(all, value) {
			return fmt.Errorf("%q is none of %s", value, strings.Join(all, ", "))
		}
		return nil
	}
}

// listOf checks a list of some of all with commas in between, in the same order: that is how they are printed.
func listOf(all ...string) argument {
	return func(value string) error {
		rest := all
		for x := range strings.SplitSeq(value, ",") {
			i := slices.Index(rest, x)
			if i < 0 {
				return fmt.Errorf("%q is none of %s, or not in this order", x, strings.Join(all, ", "))
			}
			rest = rest[i+1:]
		}
		return nil
	}
}
