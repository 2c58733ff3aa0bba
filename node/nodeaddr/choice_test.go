package nodeaddr

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func ips(list ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range list {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

func TestChoiceOf(t *testing.T) {
	host := ips("fd00::1", "192.168.1.2", "127.0.0.1", "10.0.0.1", "10.0.0.2", "::1", "fe80::1%eth0", "10.0.0.1",
		"169.254.1.1")
	node := &model.Node{IPs: ips("10.0.0.1", "10.0.0.2", "fd00::1")}
	for _, test := range []struct {
		name     string
		list     []string
		node     *model.Node
		want     string
		loopback bool
	}{
		{"nothing is everything, but link-local addresses", nil, node,
			"all IPv4 (10.0.0.1, 10.0.0.2, 127.0.0.1, 192.168.1.2), all IPv6 (::1, fd00::1)", true},
		{"ranges of one family leave the other whole", []string{"10.0.0.0/8"}, node,
			"IPv4: 10.0.0.1, 10.0.0.2, all IPv6 (::1, fd00::1)", false},
		{"ranges of both families", []string{"192.168.0.0/16", "fd00::/8"}, node, "IPv4: 192.168.1.2, IPv6: fd00::1",
			false},
		{"a range that no address is in", []string{"203.0.113.0/24", "2001:db8::/32"}, node, "IPv4: none, IPv6: none",
			false},
		{"the whole family", []string{"0.0.0.0/0", "::/0"}, node,
			"all IPv4 (10.0.0.1, 10.0.0.2, 127.0.0.1, 192.168.1.2), all IPv6 (::1, fd00::1)", true},
		{"the whole family among others", []string{"10.0.0.0/8", "0.0.0.0/0", "::1/128"}, node,
			"all IPv4 (10.0.0.1, 10.0.0.2, 127.0.0.1, 192.168.1.2), IPv6: ::1", true},
		{"a range is taken whole, whatever its host bits", []string{"10.0.0.77/24"}, node,
			"IPv4: 10.0.0.1, 10.0.0.2, all IPv6 (::1, fd00::1)", false},
		{"a part of the loopback range", []string{"127.0.0.1/32", "fd00::/8"}, node, "IPv4: 127.0.0.1, IPv6: fd00::1",
			true},
		{"a range that holds the loopback range", []string{"126.0.0.0/7", "fd00::/8"}, node,
			"IPv4: 127.0.0.1, IPv6: fd00::1", true},
		{"link-local addresses that are asked for", []string{"169.254.0.0/16", "fe80::/10"}, node,
			"IPv4: 169.254.1.1, IPv6: fe80::1", false},
		{"an IPv4-mapped range is IPv4", []string{"::ffff:10.0.0.0/104", "fd00::/8"}, node,
			"IPv4: 10.0.0.1, 10.0.0.2, IPv6: fd00::1", false},
		{"primary", []string{"primary"}, node, "IPv4: 10.0.0.1, IPv6: fd00::1", false},
		{"primary, not known yet", []string{"primary"}, nil, "IPv4: none, IPv6: none", false},
		{"primary of one family", []string{"primary"}, &model.Node{IPs: ips("fd00::1")}, "IPv4: none, IPv6: fd00::1",
			false},
		{"primary and ranges are a union", []string{"primary", "192.168.0.0/16"}, node,
			"IPv4: 10.0.0.1, 192.168.1.2, IPv6: fd00::1", false},
		{"the order does not matter, nor that a part chooses what another one does",
			[]string{"::/64", "10.0.0.0/8", "primary"}, node, "IPv4: 10.0.0.1, 10.0.0.2, IPv6: ::1, fd00::1", false},
		{"primary of one family leaves the other one to its ranges", []string{"primary", "192.168.0.0/16"},
			&model.Node{IPs: ips("fd00::1")}, "IPv4: 192.168.1.2, IPv6: fd00::1", false},
		{"primary of a family that the node does not have is not all of it", []string{"primary", "::1/128"},
			&model.Node{IPs: ips("fd00::1")}, "IPv4: none, IPv6: ::1, fd00::1", false},
		{"localhost", []string{"localhost"}, node, "IPv4: 127.0.0.1, IPv6: ::1", true},
		{"localhost and a range", []string{"localhost", "10.0.0.2/32"}, node, "IPv4: 10.0.0.2, 127.0.0.1, IPv6: ::1",
			true},
		{"localhost and primary", []string{"localhost", "primary"}, node,
			"IPv4: 10.0.0.1, 127.0.0.1, IPv6: ::1, fd00::1", true},
		{"the IPv4 loopback range alone leaves IPv6 whole", []string{"127.0.0.0/8"}, node,
			"IPv4: 127.0.0.1, all IPv6 (::1, fd00::1)", true},
		{"all", []string{"all"}, node,
			"all IPv4 (10.0.0.1, 10.0.0.2, 127.0.0.1, 192.168.1.2), all IPv6 (::1, fd00::1)", true},
		{"all and others is all", []string{"primary", "localhost", "192.168.0.0/16", "all"}, nil,
			"all IPv4 (10.0.0.1, 10.0.0.2, 127.0.0.1, 192.168.1.2), all IPv6 (::1, fd00::1)", true},
		{"leading zeros are decimal", []string{"010.000.000.002/32", "::/0"}, node,
			"IPv4: 10.0.0.2, all IPv6 (::1, fd00::1)", false},
		{"primary is not a loopback address", []string{"primary"}, &model.Node{IPs: ips("127.0.0.1", "::1")},
			"IPv4: none, IPv6: none", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := Parse(test.list)
			require.NoError(t, err)
			require.Equal(t, test.want, c.Of(host, test.node).String())
			require.Equal(t, test.loopback, c.Loopback())
		})
	}
}

func TestParseNamesInvalidElementsAndKeepsTheRest(t *testing.T) {
	c, err := Parse([]string{"10.0.0.0/8", "10.0.0.1", "primary", "localhost", "Primary", "fd00::/8", "", " all",
		"10.0.0.0/8", "primary", "localhost"})
	const keywords = ` is not a CIDR, "primary", "localhost" or "all"`
	require.EqualError(t, err, `nodePortAddresses[1]: "10.0.0.1"`+keywords+`
nodePortAddresses[4]: "Primary"`+keywords+`
nodePortAddresses[6]: ""`+keywords+`
nodePortAddresses[7]: " all"`+keywords+`
nodePortAddresses[9]: "primary" is in the list twice
nodePortAddresses[10]: "localhost" is in the list twice`)
	require.True(t, c.Primary)
	host := ips("10.0.0.1", "127.0.0.1", "192.0.2.1", "::1", "fd00::1", "2001:db8::1")
	require.Equal(t, "IPv4: 10.0.0.1, 127.0.0.1, IPv6: ::1, fd00::1", c.Of(host, nil).String(), "what the others choose")
	_, err = Parse([]string{"10.0.0.0/8", "10.0.0.0/8"})
	require.NoError(t, err, "a range twice is harmless")
}

func TestAddressesEqual(t *testing.T) {
	a := Addresses{All: model.IPv4.Set(), IPs: ips("10.0.0.1")}
	require.True(t, a.Equal(Addresses{All: model.IPv4.Set(), IPs: ips("10.0.0.1")}))
	require.False(t, a.Equal(Addresses{IPs: ips("10.0.0.1")}))
	require.False(t, a.Equal(Addresses{All: model.BothFamilies, IPs: ips("10.0.0.1")}))
	require.False(t, a.Equal(Addresses{All: model.IPv4.Set()}))
	require.False(t, a.All.Has(0))
}

func TestPrefixesOfAChoiceThatAreNoneAreNamed(t *testing.T) {
	any := netip.MustParsePrefix("::/0")
	require.NoError(t, Choice{CIDRs: []netip.Prefix{any}}.Validate())
	require.EqualError(t, Choice{CIDRs: []netip.Prefix{any, {}}}.Validate(),
		"nodePortAddresses[1]: invalid Prefix is not a prefix")
}
