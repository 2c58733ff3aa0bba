package dataplane

import (
	"bytes"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Quote returns s as iptables-save writes an argument: in quotes if it contains other characters than letters, digits
// and a few more. Comments need it.
func Quote(s string) string {
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		if strings.IndexByte(escaped, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('"')
	return b.String()
}

// As in xtables_save_string.
const (
	plain   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	escaped = "\"\\'"
)

// Probability returns the argument of "-m statistic --mode random --probability" for k in n, as iptables-save prints
// it: the kernel keeps 31 bits of it.
func Probability(k, n int) string {
	const one = 1 << 31
	return strconv.FormatFloat(math.Round(one*float64(k)/float64(n))/one, 'f', 11, 64)
}

// Address returns an address as iptables-save prints it, in glibc's form. It differs from package netip's for addresses
// that start with six groups of zeros: "::0.1.0.0" for "::1:0".
func Address(a netip.Addr) string {
	b := a.As16()
	if a.Is6() && [12]byte(b[:12]) == [12]byte{} && [2]byte(b[12:14]) != [2]byte{} {
		return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	}
	return a.String()
}

// Masked returns the argument of -s or -d that matches all addresses whose bits in mask equal those of a. mask need not
// be a prefix, and the other bits of a must be zero.
func Masked(a, mask netip.Addr) string {
	if ones, size := net.IPMask(mask.AsSlice()).Size(); size > 0 {
		return Address(a) + "/" + strconv.Itoa(ones)
	}
	return Address(a) + "/" + Address(mask)
}

// CountWith returns a match for all packets, which counts them with a counter: see [Interface].
func CountWith(counter string) string { return countWith + counter + " " }

const countWith = "-m nfacct --nfacct-name "

// normalize returns a rule in the form in which it was written: IPv6 addresses in that of Address, whatever C library
// the program uses, and those of CountWith, before whose names the programs print two spaces.
func normalize(rule []byte) []byte {
	rule = bytes.Replace(rule, []byte(countWith+" "), []byte(countWith), 1)
	if !bytes.Contains(rule, []byte("::")) {
		return rule
	}
	changed := false
	all := bytes.Split(rule, []byte(" "))
	for i := 1; i < len(all); i++ {
		if o := string(all[i-1]); o != "-s" && o != "-d" {
			continue
		}
		parts := bytes.Split(all[i], []byte("/"))
		for j, part := range parts {
			a, err := netip.ParseAddr(string(part))
			if text := Address(a); err == nil && text != string(part) {
				parts[j], changed = []byte(text), true
			}
		}
		all[i] = bytes.Join(parts, []byte("/"))
	}
	if !changed {
		return rule
	}
	return bytes.Join(all, []byte(" "))
}

// Target returns the chain that a rule jumps or goes to, or "". The chain's name has to end the rule, so a target with
// options or a quoted argument is not a chain.
func Target(rule string) string {
	rest, chain := rule, ""
	if i := strings.LastIndexByte(rule, ' '); i >= 0 {
		rest, chain = rule[:i], rule[i+1:]
	}
	option := rest[strings.LastIndexByte(rest, ' ')+1:]
	if option != "-j" && option != "-g" || strings.Contains(chain, `"`) {
		return ""
	}
	return chain
}
