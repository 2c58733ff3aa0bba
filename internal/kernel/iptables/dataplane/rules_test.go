package dataplane

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// printedRules are rules as iptables-save prints them, for a chain without hooks.
func printedRules(f model.Family) map[Table][]string {
	replace := strings.NewReplacer("NET", "10.1.0.0/16", "HOST", "192.0.2.1/32", "ADDR", "192.0.2.1", "NEXT",
		"192.0.2.9", "SOCKET", "192.0.2.1:8080",
		"MASK", "255.255.255.255", "LOW", "0.0.0.5/0.0.0.15", "MIDDLE", "0.1.0.0/0.3.0.0", "HIGH", "0.0.0.0/192.0.0.1",
		"LONE", "1.2.3.4/32",
		"ICMP", "icmp", "UNREACHABLE", "icmp-port-unreachable")
	if f == model.IPv6 {
		replace = strings.NewReplacer("NET", "2001:db8:1::/48", "HOST", "2001:db8::1/128", "ADDR", "2001:db8::1",
			"NEXT", "2001:db8::9", "SOCKET", "[2001:db8::1]:8080",
			"MASK", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "LOW", "::5/::f", "MIDDLE", "::0.1.0.0/::0.3.0.0",
			"HIGH", "0:0:1::/0:0:3::", "LONE", "::ffff:1.2.3.4/128",
			"ICMP", "ipv6-icmp", "UNREACHABLE", "icmp6-port-unreachable")
	}
	rules := map[Table][]string{
		NAT: {
			"",
			"-j KPL-OTHER",
			"-g KPL-OTHER",
			"-s NET -d HOST -i eth0 -p tcp -m tcp --dport 80 -j RETURN",
			"! -s NET ! -i cbr+ ! -p udp -j ACCEPT",
			"! -d HOST ! -o eth0 -p ICMP -j ACCEPT",
			"-p udp -m udp --sport 1000:2000 ! --dport 53 -j RETURN",
			"-p sctp -m sctp --dport 9999 -j RETURN",
			"-p tcp -m multiport --dports 80,443,8000:8080 -j RETURN",
			"-p tcp -m multiport ! --dports 80 -j RETURN",
			`-m comment --comment "default/web:http cluster IP" -j KPL-OTHER`,
			"-m comment --comment words_with-signs -j KPL-OTHER",
			`-m comment --comment "it\'s -j \"quoted\" \\ thrice" -j KPL-OTHER`,
			`-m comment --comment "` + strings.Repeat("long ", 51) + `" -j KPL-OTHER`,
			"-m statistic --mode nth --every 3 --packet 2 -j KPL-OTHER",
			"-m mark --mark 0x4000/0x4000 -j RETURN",
			"-m mark ! --mark 0x4000/0x4000 -j RETURN",
			"-m mark --mark 0x1 -j RETURN",
			"-j MARK --set-xmark 0x4000/0x4000",
			"-j MARK --set-xmark 0x4000/0x0",
			"-j MARK --set-xmark 0x1/0xffffffff",
			"-m conntrack --ctstate NEW,RELATED,ESTABLISHED -j RETURN",
			"-m conntrack --ctstate DNAT --ctorigdst ADDR --ctorigdstport 80 -j RETURN",
			"-m conntrack ! --ctstate NEW --ctdir ORIGINAL -j RETURN",
			"-m addrtype --dst-type LOCAL -j KPL-OTHER",
			"-m addrtype ! --src-type LOCAL -j KPL-OTHER",
			"-m addrtype --src-type UNICAST --dst-type LOCAL --limit-iface-in -j KPL-OTHER",
			"-m recent --rcheck --seconds 10800 --reap --name KPL-A --mask MASK --rsource -j KPL-OTHER",
			"-p tcp -m recent --set --name KPL-A --mask MASK --rsource -m tcp -j DNAT --to-destination SOCKET",
			"-m iprange --src-range ADDR-NEXT -j RETURN",
			"-m iprange ! --dst-range ADDR-NEXT -j RETURN",
			"-d LOW -j KPL-OTHER",
			"! -s LOW -j KPL-OTHER",
			"-s MIDDLE -j KPL-OTHER",
			"-s HIGH -j KPL-OTHER",
			"-s LONE -j KPL-OTHER",
			`-m bpf --bytecode "4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0" -j RETURN`,
			"-p tcp -m tcp --dport 0:32767 -j RETURN",
			"-p tcp -j DNAT --to-destination SOCKET",
			"-p tcp -m tcp -j DNAT --to-destination SOCKET",
			"-p udp -m udp -j DNAT --to-destination SOCKET --random --persistent",
			"-p tcp -j REDIRECT --to-ports 8080",
			"-j SNAT --to-source ADDR",
			"-j MASQUERADE",
			"-j MASQUERADE --random-fully",
			"-m comment --comment one -m comment --comment two -m mark --mark 0x8000/0x8000 -j RETURN",
		},
		Filter: {
			"-j DROP",
			"-j REJECT --reject-with UNREACHABLE",
			"-p tcp -j REJECT --reject-with tcp-reset",
			"-m conntrack --ctstate INVALID -j DROP",
		},
		Mangle: {"-j DROP", "-j MARK --set-xmark 0x4000/0x4000", "-i eth0 -j RETURN"},
	}
	for _, n := range []int{1, 2, 3, 7, 10, 33, 100, 999, 65536} {
		rules[NAT] = append(rules[NAT], "-m statistic --mode random --probability "+Probability(1, n)+" -j KPL-OTHER")
	}
	for _, list := range rules {
		for i := range list {
			list[i] = replace.Replace(list[i])
		}
	}
	return rules
}

func testPrintedRules(t *testing.T, ipt Interface) {
	for table, rules := range printedRules(ipt.Features().Family) {
		for _, r := range rules {
			b := &Batch{Tables: []TableBatch{{Table: table,
				Chains: []Chain{{Name: "KPL-CHAIN", Rules: []string{r}}, {Name: "KPL-OTHER"}}}}}
			if !assert.NoError(t, ipt.Restore(t.Context(), b)) {
				continue
			}
			got, err := ipt.Read(t.Context(), table, "KPL-")
			require.NoError(t, err)
			assert.Equal(t, map[string][]string{"KPL-CHAIN": {r}, "KPL-OTHER": nil}, got.Chains)
		}
	}
}

// wrongRules are refused by both variants, for IPv4.
func wrongRules() map[Table][]string {
	return map[Table][]string{
		NAT: {
			"-j",
			"-x",
			"RETURN",
			"-j KPL-NOSUCH",
			"-j " + strings.Repeat("X", 29),
			"-m nosuch -j RETURN",
			"-p tcp -m udp --dport 53 -j RETURN",
			"-m tcp --dport 80 -j RETURN",
			"-p tcp -m tcp --dport 65536 -j RETURN",
			"-p nosuch -j RETURN",
			"-s 192.0.2.256/32 -j RETURN",
			"-s 192.0.2.1/33 -j RETURN",
			"-s 2001:db8::1/128 -j RETURN",
			"-i a-name-that-is-too-long -j RETURN",
			"-p tcp -m multiport --dports " + strings.Repeat("80,", 15) + "80 -j RETURN",
			"-m statistic --mode random -j RETURN",
			"-m statistic --mode random --probability 2 -j RETURN",
			"-m statistic --mode nth --every 3 -j RETURN",
			"-m mark -j RETURN",
			"-j MARK",
			"-j DNAT",
			"-j DNAT --to-destination 192.0.2.1:80",
			"-p tcp -j DNAT --to-destination [2001:db8::1]:80",
			"-j DROP",
			"-j REJECT --reject-with icmp-port-unreachable",
			"-m addrtype --dst-type NOSUCH -j RETURN",
			"-m conntrack --ctstate NOSUCH -j RETURN",
			"-m comment -j RETURN",
			"-m set --match-set kpl-no-such-set src -j RETURN",
		},
		Filter: {
			"-j MASQUERADE",
			"-p tcp -j DNAT --to-destination 192.0.2.1:80",
			"-j REJECT --reject-with nosuch",
			"-p tcp -j REJECT --reject-with icmp6-port-unreachable",
		},
		"nosuch": {"-j RETURN"},
	}
}

func oneRule(table Table, rule string) *Batch {
	return &Batch{Tables: []TableBatch{{Table: table,
		Chains: []Chain{{Name: "KPL-CHAIN", Rules: []string{rule}, Origin: "default/web"}}}}}
}

func TestQuoted(t *testing.T) {
	for s, want := range map[string]string{
		"plain": "plain", "with space": `"with space"`, `"`: `"\""`, `\`: `"\\"`, `a\"b'c`: `"a\\\"b\'c"`, "": `""`,
		"-j KPL-A": `"-j KPL-A"`, "tab\tand more": "\"tab\tand more\"", "ünï": `"ünï"`, "a.b": `"a.b"`, "a_b-C1": "a_b-C1",
	} {
		assert.Equal(t, want, Quote(s))
	}
}

func TestTargetIsNotFoundInComments(t *testing.T) {
	for rule, want := range map[string]string{
		"-j KPL-A": "KPL-A",
		"-g KPL-A": "KPL-A",
		"":         "",
		"-j":       "",
		`-m comment --comment "x -j KPL-A" -j KPL-B`:                   "KPL-B",
		"-m comment --comment -j -j KPL-B":                             "KPL-B",
		`-m comment --comment "\" -j KPL-A"`:                           "",
		`-j LOG --log-prefix "to -j KPL-A"`:                            "",
		"-m comment --comment -j":                                      "",
		"-p tcp -m tcp --dport 80 -j DNAT --to-destination 1.2.3.4:80": "",
	} {
		assert.Equal(t, want, Target(rule), rule)
	}
}

func TestMaskedIsWrittenAsALengthWhereItIsOne(t *testing.T) {
	for want, in := range map[string][2]string{
		"10.0.0.0/8":           {"10.0.0.0", "255.0.0.0"},
		"10.1.2.3/32":          {"10.1.2.3", "255.255.255.255"},
		"0.0.0.3/0.0.0.7":      {"0.0.0.3", "0.0.0.7"},
		"10.0.2.0/255.0.255.0": {"10.0.2.0", "255.0.255.0"},
		"0.0.0.0/1":            {"0.0.0.0", "128.0.0.0"},
		"2001:db8::/32":        {"2001:db8::", "ffff:ffff::"},
		"::1/::f":              {"::1", "::f"},
		"::0.1.0.0/::0.3.0.0":  {"::1:0", "::3:0"},
		"2001:db8::1/128":      {"2001:db8::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		assert.Equal(t, want, Masked(netip.MustParseAddr(in[0]), netip.MustParseAddr(in[1])))
	}
}

func TestIPv6AddressesAreReadInOneForm(t *testing.T) {
	for printed, want := range map[string]string{
		"-d ::1:0/::3:0 -j RETURN":                                 "-d ::0.1.0.0/::0.3.0.0 -j RETURN",
		"-d ::0.1.0.0/::0.3.0.0 -j RETURN":                         "-d ::0.1.0.0/::0.3.0.0 -j RETURN",
		"! -s ::1:0/128 -d ::1/128 -j RETURN":                      "! -s ::0.1.0.0/128 -d ::1/128 -j RETURN",
		"-d ::ffff:1.2.3.4/128 -j RETURN":                          "-d ::ffff:1.2.3.4/128 -j RETURN",
		`-m comment --comment "a::b c. d" -j RETURN`:               `-m comment --comment "a::b c. d" -j RETURN`,
		"-m statistic --probability 0.5 -d ::1/128 -j DNAT --to x": "-m statistic --probability 0.5 -d ::1/128 -j DNAT --to x",
	} {
		assert.Equal(t, want, string(normalize([]byte(printed))))
	}
}
