package differential

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	proxyvalidation "k8s.io/kubernetes/pkg/proxy/apis/config/validation"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// nodePortElements are what random lists of nodePortAddresses consist of. The ranges of link-local addresses are left
// out: see the departures of S35.
var nodePortElements = []string{
	"primary", "primary", "localhost", "localhost", "all", "0.0.0.0/0", "::/0", "127.0.0.0/8", "127.0.0.1/32",
	"126.0.0.0/7", "::1/128", "::/127", "10.0.0.0/8", "010.0.0.0/08", "10.0.0.2/32", "10.0.0.77/24", "fd00::/8",
	"fd00::1/128", "192.0.2.0/24", "::ffff:10.0.0.0/104",
	"Primary", "ALL", " all", "10.0.0.1", "10.0.0.0/33", "", " 10.0.0.0/8", "fe80::1%eth0/64", "eth0",
}

// hostInterfaces is a host for upstream.
type hostInterfaces []netip.Addr

func (h hostInterfaces) InterfaceAddrs() ([]net.Addr, error) {
	var list []net.Addr
	for _, a := range h {
		list = append(list, &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())})
	}
	return list, nil
}

// TestNodePortAddressesAreThoseOfUpstream compares which lists are valid, and which addresses of a host they choose, on
// a dual-stack node. Upstream's function that expands keywords is not exported; the rest is its code.
func TestNodePortAddressesAreThoseOfUpstream(t *testing.T) {
	var host hostInterfaces
	for _, text := range []string{"127.0.0.1", "10.0.0.1", "10.0.0.2", "192.0.2.1", "::1", "fd00::1", "2001:db8::1"} {
		host = append(host, netip.MustParseAddr(text))
	}
	node := &model.Node{IPs: []netip.Addr{host[1], host[5]}}
	keywords := map[string][]string{"primary": {"10.0.0.1/32", "fd00::1/128"}, "localhost": {"127.0.0.0/8", "::1/128"},
		"all": {"0.0.0.0/0", "::/0"}}
	valid := 0
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var list, expanded []string
		for range rng.IntN(5) {
			element := nodePortElements[rng.IntN(len(nodePortElements))]
			list = append(list, element)
			if cidrs := keywords[element]; cidrs != nil {
				expanded = append(expanded, cidrs...)
			} else {
				expanded = append(expanded, element)
			}
		}
		choice, err := nodeaddr.Parse(list)
		require.Equal(t, validUpstream(list), err == nil, "%q is valid", list)
		if err != nil {
			continue
		}
		valid++
		for family, f := range map[corev1.IPFamily]model.Family{corev1.IPv4Protocol: model.IPv4,
			corev1.IPv6Protocol: model.IPv6} {
			theirs := proxyutil.NewNodePortAddresses(family, expanded)
			require.Equal(t, theirs.MatchAll(), choice.All(f), "%q chooses all of %v", list, f)
			if f == model.IPv4 {
				require.Equal(t, theirs.ContainsIPv4Loopback(), choice.Loopback(), "%q", list)
			}
			ips, err := theirs.GetNodeIPs(host)
			require.NoError(t, err)
			want := []string{}
			for _, ip := range ips {
				want = append(want, ip.String())
			}
			slices.Sort(want)
			got := []string{}
			for _, ip := range choice.Of(host, node).Of(f) {
				got = append(got, ip.String())
			}
			slices.Sort(got)
			require.Equal(t, want, got, "%q, %v", list, f)
		}
	}
	require.Greater(t, valid, 1000)
}

// validUpstream reports whether upstream finds nothing wrong with nodePortAddresses.
func validUpstream(list []string) bool {
	c := &proxyconfig.KubeProxyConfiguration{NodePortAddresses: list}
	c.Linux.Conntrack.TCPEstablishedTimeout, c.Linux.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{}, &metav1.Duration{}
	for _, err := range proxyvalidation.Validate(c) {
		for i := range list {
			// Up to 1.37 the fields have the names of the internal type.
			field := fmt.Sprintf("nodePortAddresses[%d]", i)
			if err.Field == field || err.Field == "KubeProxyConfiguration.N"+field[1:] {
				return false
			}
		}
	}
	return true
}
