package localstate

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// parsePrefix parses a CIDR leniently (S5), and accepts white space around it.
func parsePrefix(text string) (netip.Prefix, error) { return lenient.Prefix(strings.TrimSpace(text)) }

// parseProtocol reads a protocol; an empty one is TCP (S11).
func parseProtocol(p corev1.Protocol) (model.Protocol, error) {
	switch p {
	case "", corev1.ProtocolTCP:
		return model.TCP, nil
	case corev1.ProtocolUDP:
		return model.UDP, nil
	case corev1.ProtocolSCTP:
		return model.SCTP, nil
	}
	return model.ParseProtocol(string(p))
}

// parsePort reads a port number that the API server may not have checked (S15).
func parsePort(n int32) (uint16, bool) { return uint16(n), n >= 1 && n <= 65535 }
