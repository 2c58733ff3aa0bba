package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Rules are written as iptables-save prints them, so that what is there can be compared with what is wanted as text.

func prefixText(p netip.Prefix) string {
	return dp.Address(p.Masked().Addr()) + "/" + strconv.Itoa(p.Bits())
}

func hostText(a netip.Addr) string { return dp.Address(a) + "/" + strconv.Itoa(a.BitLen()) }

func protocolText(p model.Protocol) string {
	switch p {
	case model.TCP:
		return "tcp"
	case model.UDP:
		return "udp"
	case model.SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}

func portMatch(p model.Protocol, ports string) string {
	name := protocolText(p)
	return "-p " + name + " -m " + name + " --dport " + ports
}

// comment is a match that matches everything, for people to read.
func comment(text string) string { return " -m comment --comment " + dp.Quote(text) }

// portComment names a service port in a comment. It is bounded, and can do no harm whatever the names are.
func portComment(n model.PortName) string {
	text := n.Service.Namespace + "/" + n.Service.Name
	if n.Port != "" {
		text += ":" + n.Port
	}
	b := []byte(text[:min(len(text), 160)])
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("/:-_.", c) >= 0:
		default:
			b[i] = '_'
		}
	}
	return string(b)
}

// hash returns 16 characters for a name, 80 bits of it.
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

func portHash(n model.PortName) string {
	return hash(n.Service.Namespace, n.Service.Name, n.Port, n.Protocol.String())
}

func markText(bit uint32, set bool) string {
	value := uint32(0)
	if set {
		value = bit
	}
	return fmt.Sprintf("-j MARK --set-xmark %#x/%#x", value, bit)
}

// markMatch matches packets that have the mark.
func markMatch(bit uint32) string { return fmt.Sprintf("-m mark --mark %#x/%#x", bit, bit) }
