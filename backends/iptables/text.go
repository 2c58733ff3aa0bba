package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Rules are written as iptables-save prints them, so that existing and wanted rules can be compared as text. Matches
// end in a space: a rule is any number of them and a target.

func prefixText(p netip.Prefix) string {
	return dp.Address(p.Masked().Addr()) + "/" + strconv.Itoa(p.Bits())
}

func hostText(a netip.Addr) string { return dp.Address(a) + "/" + strconv.Itoa(a.BitLen()) }

func protocolText(p model.Protocol) string { return strings.ToLower(p.String()) }

func protocolMatch(p model.Protocol) string { return "-p " + protocolText(p) + " " }

func portMatch(p model.Protocol, ports string) string {
	return protocolMatch(p) + "-m " + protocolText(p) + " --dport " + ports + " "
}

// sourceMatch is "" for all sources: iptables-save does not print that.
func sourceMatch(p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return "-s " + prefixText(p) + " "
}

// chance matches k of n packets, at random.
func chance(k, n int) string {
	if k >= n {
		return ""
	}
	return "-m statistic --mode random --probability " + dp.Probability(k, n) + " "
}

// comment matches everything. It is for people to read.
func comment(text string) string { return "-m comment --comment " + dp.Quote(text) + " " }

// portComment names a service port in a comment. Its length is bounded, and it is safe whatever the names are.
func portComment(n model.PortName) string {
	text := strings.TrimSuffix(n.Service.String()+":"+n.Port, ":")
	return strings.Map(func(c rune) rune {
		if c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune("/:-_.", c)) {
			return c
		}
		return '_'
	}, text[:min(len(text), 160)])
}

// hash returns 16 characters for a service port and more, 80 bits of it.
func hash(n model.PortName, more ...string) string {
	parts := append([]string{n.Service.Namespace, n.Service.Name, n.Port, n.Protocol.String()}, more...)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

func markText(bit uint32, set bool) string {
	value := uint32(0)
	if set {
		value = bit
	}
	return fmt.Sprintf("-j MARK --set-xmark %#x/%#x", value, bit)
}

func markMatch(bit uint32) string { return fmt.Sprintf("-m mark --mark %#x/%#x ", bit, bit) }
