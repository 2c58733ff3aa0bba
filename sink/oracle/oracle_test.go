package oracle

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// expectation is one flow through a fixture that change has been applied to.
type expectation struct {
	name   string
	change func(*fixture)
	flow   string
	want   string // in the form of brief
	why    string // what the explanation must name
}

func check(t *testing.T, tests []expectation) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			if tt.change != nil {
				tt.change(f)
			}
			got, err := f.oracle(t).Expect(flow(t, tt.flow))
			require.NoError(t, err)
			assert.Equal(t, tt.want, brief(got), "%v", got)
			assert.Contains(t, fmt.Sprint(got.Reasons), tt.why)
			for _, also := range got.AlsoAllowed {
				assert.Empty(t, also.AlsoAllowed, "alternatives have no alternatives")
			}
		})
	}
}

// The changes that the tests have in common.

func internalLocal(f *fixture) { f.policy.Internal = model.TrafficPolicyLocal }

func externalLocal(f *fixture) { f.policy.External = model.TrafficPolicyLocal }

func noDetector(f *fixture) { f.node.LocalPods = model.LocalPods{} }

func nobody(f *fixture) {
	f.policy.NoEndpoints = true
	f.setEndpoints()
}

func onlyRemote(f *fixture) { f.setEndpoints(remote(remotePod, cluster)) }

func all(changes ...func(*fixture)) func(*fixture) {
	return func(f *fixture) {
		for _, change := range changes {
			change(f)
		}
	}
}

func ranges(cidrs ...string) func(*fixture) {
	return func(f *fixture) {
		for _, cidr := range cidrs {
			f.service.LoadBalancerSourceRanges = append(f.service.LoadBalancerSourceRanges, prefix(cidr))
		}
	}
}

func TestEmptySets(t *testing.T) {
	check(t, []expectation{
		{"no endpoint anywhere rejects at the cluster IP", nobody, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			"reject", "S25"},
		{"no endpoint anywhere rejects at the external IP", nobody, "external 203.0.113.7 -> 198.51.100.10:80/TCP",
			"reject", "S25"},
		{"no endpoint anywhere rejects at the VIP", nobody, "external 203.0.113.7 -> 198.51.100.20:80/TCP", "reject",
			"S25"},
		{"no endpoint anywhere rejects at the node port", nobody, "external 203.0.113.7 -> 172.18.0.2:30080/TCP",
			"reject", "S25"},
		{"no endpoint anywhere rejects even with internal policy Local", all(internalLocal, nobody),
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", "reject", "S25"},
		{"no endpoint anywhere rejects even with external policy Local", all(externalLocal, nobody),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "reject", "S25"},
		{"internal policy Local with none local drops at the cluster IP", all(internalLocal, onlyRemote),
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", "drop", "S25"},
		{"internal policy Local with none local drops the node too", all(internalLocal, onlyRemote),
			"node 172.18.0.2 -> 10.96.0.10:80/TCP", "drop", "S25"},
		{"internal policy Local with none local does not touch the VIP", all(internalLocal, onlyRemote),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", deliver(remotePod + "!"), "S27"},
		{"external policy Local with none local drops external traffic", all(externalLocal, onlyRemote),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "drop", "S25"},
		{"external policy Local with none local drops at the node port", all(externalLocal, onlyRemote),
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", "drop", "S25"},
		{"external policy Local with none local does not touch the cluster IP", all(externalLocal, onlyRemote),
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(remotePod), "S28"},
		{"one family without endpoints does not concern the other",
			func(f *fixture) { f.setEndpoints(remote(remotePod, cluster)) },
			"local pod fd44:1::9 -> [fd96::10]:80/TCP", "reject", "S25"},
		{"an endpoint in no set gets nothing",
			func(f *fixture) { f.setEndpoints(local(localPod, 0), remote(remotePod, cluster)) },
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(remotePod), ""},
	})
}

func TestTrafficPolicies(t *testing.T) {
	check(t, []expectation{
		{"external policy Cluster sends anywhere with source NAT", nil,
			"external 203.0.113.7 -> 198.51.100.10:80/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"external policy Cluster translates a local pod too", nil,
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"external policy Local keeps the source and stays on the node", externalLocal,
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", deliver(localPod), "S27"},
		{"external policy Local at the external IP", externalLocal,
			"external 203.0.113.7 -> 198.51.100.10:80/TCP", deliver(localPod), "S27"},
		{"external policy Local at the node port", externalLocal,
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", deliver(localPod), "S27"},
		{"external policy Local treats a remote pod like anybody else", externalLocal,
			"remote pod 10.244.2.9 -> 198.51.100.20:80/TCP", deliver(localPod), "S27"},
		{"external policy Local sends a local pod anywhere without source NAT", externalLocal,
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", deliver(localPod, remotePod), "S27"},
		{"external policy Local sends a local pod to the node port anywhere without source NAT", externalLocal,
			"local pod 10.244.1.9 -> 172.18.0.2:30080/TCP", deliver(localPod, remotePod), "S27"},
		{"external policy Local keeps a local pod on the node if there is no detector", all(externalLocal, noDetector),
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", deliver(localPod), "S27"},
		{"external policy Local sends the node anywhere with source NAT", externalLocal,
			"node 172.18.0.2 -> 198.51.100.20:80/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"external policy Local sends the node anywhere without a detector as well", all(externalLocal, noDetector),
			"node 172.18.0.2 -> 172.18.0.2:30080/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"a pod in the host's network is the node", externalLocal,
			"node 192.168.9.2 -> 198.51.100.20:80/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"internal policy Local stays on the node", internalLocal,
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(localPod), "S28"},
		{"IPv6 has its own endpoints and rules", all(externalLocal, func(f *fixture) {
			f.setEndpoints(local(localPod, cluster|locally), local(localPod6, cluster|locally),
				remote(remotePod6, cluster))
		}), "external 2001:db8::7 -> [2001:db8:10::20]:80/TCP", deliver(localPod6), "S27"},
	})
}

func TestMasquerading(t *testing.T) {
	masqueradeAll := func(f *fixture) { f.policy.MasqueradeAll = true }
	clusterCIDR := func(
		f *fixture) {
		f.node.LocalPods = model.LocalPods{CIDRs: []netip.Prefix{prefix("10.244.0.0/16")}}
	}
	bridge := func(f *fixture) { f.node.LocalPods = model.LocalPods{Bridge: "cni0"} }
	interfaces := func(f *fixture) { f.node.LocalPods = model.LocalPods{InterfacePrefix: "veth"} }
	check(t, []expectation{
		{"a local pod keeps its address at the cluster IP", nil, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			deliver(localPod, remotePod), "passes for a local pod (S30)"},
		{"the node is translated at the cluster IP", nil, "node 172.18.0.2 -> 10.96.0.10:80/TCP",
			deliver(localPod+"!", remotePod+"!"), "S28"},
		{"a remote pod is translated at the cluster IP", nil, "remote pod 10.244.2.9 -> 10.96.0.10:80/TCP",
			deliver(localPod+"!", remotePod+"!"), "does not pass for a local pod (S30)"},
		{"a remote pod in the cluster CIDR passes for a local one", clusterCIDR,
			"remote pod 10.244.2.9 -> 10.96.0.10:80/TCP", deliver(localPod, remotePod), "S28"},
		{"a remote pod in the cluster CIDR passes for a local one at the VIP", all(clusterCIDR, externalLocal),
			"remote pod 10.244.2.9 -> 198.51.100.20:80/TCP", deliver(localPod, remotePod), "S27"},
		{"a bridge tells local pods by what they are", bridge, "local pod 203.0.113.7 -> 10.96.0.10:80/TCP",
			deliver(localPod, remotePod), "S28"},
		{"a bridge does not take a remote pod for a local one", bridge,
			"remote pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(localPod+"!", remotePod+"!"), "S28"},
		{"so do interface names", interfaces, "local pod 203.0.113.7 -> 10.96.0.10:80/TCP",
			deliver(localPod, remotePod), "S28"},
		{"a host process with an address of the pod range passes for a pod", externalLocal,
			"node 10.244.1.1 -> 198.51.100.20:80/TCP", deliver(localPod, remotePod), "S27"},
		{"without a detector the cluster IP translates nobody", noDetector,
			"external 203.0.113.7 -> 10.96.0.10:80/TCP", deliver(localPod, remotePod), "S28"},
		{"a CIDR of IPv4 only is no detector for IPv6",
			all(clusterCIDR, func(f *fixture) { f.setEndpoints(remote(remotePod6, cluster)) }),
			"external 2001:db8::7 -> [fd96::10]:80/TCP", deliver(remotePod6), "S28"},
		{"masquerade-all translates local pods at the cluster IP", masqueradeAll,
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(localPod+"!", remotePod+"!"), "S28"},
		{"a pod that reaches itself is translated, and only then", nil,
			"local pod 10.244.1.5 -> 10.96.0.10:80/TCP", deliver(localPod+"!", remotePod), "S29"},
		{"a pod that reaches itself through the VIP is translated under external policy Local too", externalLocal,
			"local pod 10.244.1.5 -> 198.51.100.20:80/TCP", deliver(localPod+"!", remotePod), "S29"},
		{"an endpoint in the host's network that reaches itself is translated", all(noDetector, func(f *fixture) {
			f.setEndpoints(local(nodeIP, cluster|locally), remote(remotePod, cluster))
		}), "node 172.18.0.2 -> 10.96.0.10:80/TCP", "deliver to 10.244.2.5:8080 or 172.18.0.2:8080 (source NAT)",
			"S29"},
	})
}

func TestSourceRanges(t *testing.T) {
	check(t, []expectation{
		{"a source outside the ranges is dropped at the VIP", ranges("192.0.2.0/24"),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "drop", "S26"},
		{"a source inside the ranges passes", ranges("192.0.2.0/24", "203.0.113.0/24"),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"pods are filtered like everyone", ranges("203.0.113.0/24"),
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", "drop", "S26"},
		{"the node is filtered like everyone", ranges("203.0.113.0/24"),
			"node 172.18.0.2 -> 198.51.100.20:80/TCP", "drop", "S26"},
		{"the VIP is an allowed source where it is in the list", ranges("172.18.0.0/24", "198.51.100.20/32"),
			"node 198.51.100.20 -> 198.51.100.20:80/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"the VIP is no allowed source of itself", ranges("203.0.113.0/24"),
			"node 198.51.100.20 -> 198.51.100.20:80/TCP", "drop", "S26"},
		{"external IPs bypass the ranges", ranges("192.0.2.0/24"),
			"external 203.0.113.7 -> 198.51.100.10:80/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"node ports bypass the ranges", ranges("192.0.2.0/24"),
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"the cluster IP bypasses the ranges", ranges("192.0.2.0/24"),
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(localPod, remotePod), "S28"},
		{"ranges of IPv4 do not restrict IPv6",
			all(ranges("192.0.2.0/24"), func(f *fixture) { f.setEndpoints(remote(remotePod6, cluster)) }),
			"external 2001:db8::7 -> [2001:db8:10::20]:80/TCP", deliver(remotePod6 + "!"), "S27"},
		{"without endpoints a disallowed source is dropped or rejected", all(nobody, ranges("192.0.2.0/24")),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "drop | reject", "S26"},
		{"without endpoints an allowed source is rejected", all(nobody, ranges("203.0.113.0/24")),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "reject", "S25"},
		{"without local endpoints it is drop either way", all(externalLocal, onlyRemote, ranges("192.0.2.0/24")),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "drop", "S26"},
		{"an address that is external IP and VIP of one service may go by either",
			all(ranges("192.0.2.0/24"), func(f *fixture) {
				f.service.ExternalIPs = append(f.service.ExternalIPs, addr("198.51.100.20"))
			}), "external 203.0.113.7 -> 198.51.100.20:80/TCP", deliver(localPod+"!", remotePod+"!") + " | drop",
			"external IP"},
	})
}

func TestUnknownDestinations(t *testing.T) {
	check(t, []expectation{
		{"an unknown port of a cluster IP is rejected or left alone", nil,
			"local pod 10.244.1.9 -> 10.96.0.10:81/TCP", "reject | not ours", "S33"},
		{"a known port of a cluster IP with another protocol is unknown", nil,
			"local pod 10.244.1.9 -> 10.96.0.10:80/UDP", "reject | not ours", "S33"},
		{"the cluster IP of a service without endpoints is active", nobody,
			"local pod 10.244.1.9 -> 10.96.0.10:81/TCP", "reject | not ours", "S33"},
		{"a node port is not a port of the cluster IP", nil,
			"local pod 10.244.1.9 -> 10.96.0.10:30080/TCP", "reject | not ours", "S33"},
		{"an unallocated address of the service CIDRs is dropped or left alone", nil,
			"local pod 10.244.1.9 -> 10.96.0.99:80/TCP", "drop | not ours | reject", "S33"},
		{"so it is in IPv6", nil, "local pod fd44:1::9 -> [fd96::99]:80/TCP", "drop | not ours | reject", "S33"},
		{"an external IP in the service CIDRs is unallocated for its unknown ports", func(f *fixture) {
			f.service.ExternalIPs = []netip.Addr{addr("10.96.0.50")}
		}, "local pod 10.244.1.9 -> 10.96.0.50:81/TCP", "drop | not ours | reject", "S33"},
		{"without known service CIDRs nothing is dropped", func(f *fixture) { f.node.ServiceCIDRs = nil },
			"local pod 10.244.1.9 -> 10.96.0.99:80/TCP", "not ours", "no service"},
		{"an unknown port of an external IP is not ours", nil,
			"external 203.0.113.7 -> 198.51.100.10:81/TCP", "not ours", "no service"},
		{"an unknown port of a VIP is not ours, whatever the source ranges", ranges("192.0.2.0/24"),
			"external 203.0.113.7 -> 198.51.100.20:81/TCP", "not ours", "no service"},
		{"an endpoint itself is not ours", nil, "external 203.0.113.7 -> 10.244.1.5:8080/TCP", "not ours",
			"endpoint of default/web:http/TCP itself"},
		{"the world is not ours", nil, "local pod 10.244.1.9 -> 192.0.2.1:443/TCP", "not ours", "no service"},
		{"an external IP whose route carries no traffic is none", func(f *fixture) { f.noRoutes = true },
			"external 203.0.113.7 -> 198.51.100.10:80/TCP", "not ours", "no service"},
		{"a VIP whose route carries no traffic is none", func(f *fixture) { f.noRoutes = true },
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "not ours", "no service"},
		{"a node port whose route carries no traffic is none", func(f *fixture) { f.noRoutes = true },
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", "not ours", ""},
		{"a port whose route carries no traffic is unknown at the cluster IP", func(f *fixture) { f.noRoutes = true },
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", "reject | not ours", "S33"},
	})
}

func TestNodePorts(t *testing.T) {
	cidrs := func(list ...string) func(*fixture) {
		return func(f *fixture) {
			for _, cidr := range list {
				f.config.NodePortCIDRs = append(f.config.NodePortCIDRs, prefix(cidr))
			}
		}
	}
	primary := func(f *fixture) { f.config.NodePortPrimary = true }
	many := func(f *fixture) {
		for i := range 1000 {
			f.config.HostAddresses = append(f.config.HostAddresses, netip.AddrFrom4([4]byte{192, 168, 16 + byte(i/250),
				byte(i % 250)}))
		}
	}
	localhost := func(f *fixture) { f.config.LocalhostNodePorts = true }
	proxied := func(f *fixture) { f.config.LoopbackProxy = true }
	served := deliver(localPod+"!", remotePod+"!")
	check(t, []expectation{
		{"a proxy serves 127.0.0.1", proxied, "node 127.0.0.1 -> 127.0.0.1:30080/TCP", served, "S36a"},
		{"a proxy keeps to the node with policy Local", all(proxied, externalLocal),
			"node 127.0.0.1 -> 127.0.0.1:30080/TCP", deliver(localPod + "!"), "S36a"},
		{"a proxy refuses without local endpoints", all(proxied, externalLocal, func(f *fixture) {
			f.setEndpoints(remote(remotePod, cluster))
		}), "node 127.0.0.1 -> 127.0.0.1:30080/TCP", "reject", "S25"},
		{"a proxy serves no other loopback address", proxied, "node 127.0.0.1 -> 127.0.0.2:30080/TCP", "not ours",
			"S36"},
		{"a proxy does not serve where the list leaves it out", all(proxied, cidrs("192.168.0.0/16")),
			"node 127.0.0.1 -> 127.0.0.1:30080/TCP", "not ours", "S36"},
		{"a proxy serves no SCTP", all(proxied, func(f *fixture) {
			f.service.Ports[0].Protocol = model.SCTP
			f.setEndpoints()
		}),
			"node 127.0.0.1 -> 127.0.0.1:30080/SCTP", "not ours", "S36"},
		{"without a list every host address serves", nil, "external 203.0.113.7 -> 192.168.9.2:30080/TCP", served,
			"node port"},
		{"the first of many host addresses serves", many, "external 203.0.113.7 -> 172.18.0.2:30080/TCP", served,
			"node port"},
		{"the last of many host addresses serves", many, "external 203.0.113.7 -> 192.168.19.249:30080/TCP", served,
			"node port"},
		{"what is none of many host addresses does not", many, "external 203.0.113.7 -> 192.168.20.1:30080/TCP",
			"not ours", "no service"},
		{"without host addresses the node's own serve", func(f *fixture) { f.config.HostAddresses = nil },
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", served, "node port"},
		{"without host addresses nothing else serves", func(f *fixture) { f.config.HostAddresses = nil },
			"external 203.0.113.7 -> 192.168.9.2:30080/TCP", "not ours", "no service"},
		{"an address in the list serves", cidrs("192.168.0.0/16"), "external 203.0.113.7 -> 192.168.9.2:30080/TCP",
			served, "node port"},
		{"an address that is not in the list does not", cidrs("192.168.0.0/16"),
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", "not ours", "S35"},
		{"a list of IPv6 leaves IPv4 to every address", cidrs("fd00::/8"),
			"external 203.0.113.7 -> 192.168.9.2:30080/TCP", served, "node port"},
		{"another node's address is not ours", nil, "external 203.0.113.7 -> 172.18.0.3:30080/TCP", "not ours",
			"no service"},
		{"primary means the node's own address", primary, "external 203.0.113.7 -> 172.18.0.2:30080/TCP", served,
			"node port"},
		{"primary leaves other host addresses alone", primary, "external 203.0.113.7 -> 192.168.9.2:30080/TCP",
			"not ours", "S35"},
		{"primary is not limited by a list", all(primary, cidrs("192.168.0.0/16")),
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", served, "node port"},
		{"nor does it limit one", all(primary, cidrs("192.168.0.0/16")),
			"external 203.0.113.7 -> 192.168.9.2:30080/TCP", served, "node port"},
		{"what neither primary nor the list has does not serve", all(primary, cidrs("10.0.0.0/8")),
			"external 203.0.113.7 -> 192.168.9.2:30080/TCP", "not ours", "S35"},
		{"a second address that Kubernetes knows serves if the list has it", all(primary, cidrs("192.168.0.0/16"),
			func(f *fixture) { f.node.IPs = append(f.node.IPs, addr(nodeIP2)) }),
			"external 203.0.113.7 -> 192.168.9.2:30080/TCP", served, "node port"},
		{"primary and localhost in the list", all(localhost, primary, cidrs("127.0.0.0/8", "::1/128")),
			"node 127.0.0.1 -> 127.0.0.1:30080/TCP", served, "node port"},
		{"localhost alone is not the node's address", all(localhost, cidrs("127.0.0.0/8", "::1/128")),
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", "not ours", "S35"},
		{"a second address that Kubernetes knows may count as primary or not", all(primary, func(f *fixture) {
			f.node.IPs = append(f.node.IPs, addr(nodeIP2))
		}), "external 203.0.113.7 -> 192.168.9.2:30080/TCP", served + " | not ours", "node port"},
		{"localhost does not serve by default", nil, "node 127.0.0.1 -> 127.0.0.1:30080/TCP", "not ours", "S36"},
		{"localhost serves where the option says so", localhost, "node 127.0.0.1 -> 127.0.0.1:30080/TCP", served,
			"node port"},
		{"localhost serves everywhere, external policy or not", all(localhost, externalLocal),
			"node 127.0.0.1 -> 127.0.0.1:30080/TCP", served, "S27"},
		{"localhost does not serve where the list leaves it out", all(localhost, cidrs("192.168.0.0/16")),
			"node 127.0.0.1 -> 127.0.0.1:30080/TCP", "not ours", "S36"},
		{"localhost is not primary", all(localhost, primary), "node 127.0.0.1 -> 127.0.0.1:30080/TCP", "not ours",
			"S35"},
		{"localhost never serves in IPv6", localhost, "node ::1 -> [::1]:30080/TCP", "not ours", "S36"},
		{"the service port at a host address is not ours", nil, "external 203.0.113.7 -> 172.18.0.2:80/TCP", "not ours",
			"no service"},
		{"the node port at the VIP is not ours", nil, "external 203.0.113.7 -> 198.51.100.20:30080/TCP", "not ours",
			"no service"},
		{"a node port equal to the service port is both, each at its address",
			func(f *fixture) { f.service.Ports[0].NodePort = 80 },
			"external 203.0.113.7 -> 172.18.0.2:80/TCP", served, "node port"},
		{"a node port equal to the service port leaves the cluster IP to the cluster IP's route",
			func(f *fixture) { f.service.Ports[0].NodePort = 80 },
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(localPod, remotePod), "S28"},
		{"an endpoint in the host's network that listens on the node port's number is behind the node port",
			func(f *fixture) {
				f.setEndpoints(remote(remotePod, cluster))
			}, "external 203.0.113.7 -> 172.18.0.2:30080/TCP", deliver(remotePod + "!"), "node port"},
	})
}

func TestSharedAddresses(t *testing.T) {
	check(t, []expectation{
		{"a cluster IP is nobody else's external IP", func(f *fixture) {
			f.bare("thief", 80, func(s *model.Service) { s.ExternalIPs = f.service.ClusterIPs[:1] })
		}, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(localPod, remotePod), "cluster IP"},
		{"a cluster IP is nobody else's VIP", func(f *fixture) {
			f.bare("thief", 80, func(s *model.Service) { s.LoadBalancerIPs = f.service.ClusterIPs[:1] })
		}, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(localPod, remotePod), "cluster IP"},
		{"a port that only the other service has at the address is the other's", func(f *fixture) {
			f.bare("other", 81, func(s *model.Service) { s.ExternalIPs = f.service.ClusterIPs[:1] })
		}, "local pod 10.244.1.9 -> 10.96.0.10:81/TCP", "reject", "external IP of default/other:http/TCP"},
		{"an external IP that two services list is either's, the first by name before the other", func(f *fixture) {
			f.bare("abba", 80, func(s *model.Service) { s.ExternalIPs = f.service.ExternalIPs[:1] })
		}, "external 203.0.113.7 -> 198.51.100.10:80/TCP", "reject | " + deliver(localPod+"!", remotePod+"!"),
			"default/abba"},
		{"and the order in which they are known does not matter", func(f *fixture) {
			f.bare("zorro", 80, func(s *model.Service) { s.ExternalIPs = f.service.ExternalIPs[:1] })
		}, "external 203.0.113.7 -> 198.51.100.10:80/TCP", deliver(localPod+"!", remotePod+"!") + " | reject",
			"default/web"},
		{"an external IP of one service and VIP of another is either's, source ranges included",
			all(ranges("192.0.2.0/24"), func(f *fixture) {
				f.bare("other", 80, func(s *model.Service) { s.ExternalIPs = f.service.LoadBalancerIPs[:1] })
				f.setEndpoints(remote(remotePod, cluster))
			}), "external 203.0.113.7 -> 198.51.100.20:80/TCP", "reject | drop", "default/other"},
		{"the alternatives of an alternative are alternatives",
			all(ranges("192.0.2.0/24"), externalLocal, func(f *fixture) {
				f.bare("other", 80, func(s *model.Service) { s.ExternalIPs = f.service.LoadBalancerIPs[:1] })
				nobody(f)
			}), "external 203.0.113.7 -> 198.51.100.20:80/TCP", "reject | drop | reject", "default/other"},
		{"an external IP that is a host address and a node port there have one owner, either of them", func(f *fixture) {
			f.bare("other", 30080, func(s *model.Service) { s.ExternalIPs = []netip.Addr{addr(nodeIP)} })
		}, "external 203.0.113.7 -> 172.18.0.2:30080/TCP",
			"reject | deliver to 10.244.1.5:8080 (source NAT) or 10.244.2.5:8080 (source NAT)", "external IP of default/other"},
	})
}

// The cases that re-implementations get wrong, as far as a packet shows them. Topology and termination are already
// expressed as sets when the oracle sees them.
func TestHardCases(t *testing.T) {
	const terminating, otherZone = "10.244.1.6", "10.244.1.7"
	check(t, []expectation{
		{"4: external policy Local with hints reaches the local endpoint of another zone",
			all(externalLocal, func(f *fixture) {
				f.setEndpoints(local(otherZone, locally), remote(remotePod, cluster))
			}), "external 203.0.113.7 -> 198.51.100.20:80/TCP", deliver(otherZone), "S27"},
		{"4: and the cluster IP does not", all(externalLocal, func(f *fixture) {
			f.setEndpoints(local(otherZone, locally), remote(remotePod, cluster))
		}), "local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(remotePod), "S28"},
		{"5: the local set falls back to terminating while the cluster set stays ready",
			all(externalLocal, func(f *fixture) {
				f.setEndpoints(local(terminating, locally), remote(remotePod, cluster))
			}), "external 203.0.113.7 -> 198.51.100.20:80/TCP", deliver(terminating), "S27"},
		{"7: internal policy Local without external addresses drops, it does not reject",
			all(internalLocal, func(f *fixture) {
				f.policy.ExternalAddresses = false
				f.setEndpoints(remote(remotePod, 0))
			}), "local pod 10.244.1.9 -> 10.96.0.10:80/TCP", "drop", "S25"},
		{"8: terminating endpoints only elsewhere: the cluster IP reaches them", all(externalLocal, onlyRemote),
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", deliver(remotePod), "S28"},
		{"8: terminating endpoints only elsewhere: external policy Local drops, not rejects",
			all(externalLocal, onlyRemote),
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", "drop", "S25"},
		{"9: terminating and not serving everywhere rejects", all(externalLocal, func(f *fixture) {
			f.policy.NoEndpoints = true
			f.setEndpoints(local(localPod, 0), remote(remotePod, 0))
		}), "external 203.0.113.7 -> 198.51.100.20:80/TCP", "reject", "S25"},
		{"10: the health check counts none, and the terminating endpoint still gets traffic",
			all(externalLocal, func(f *fixture) {
				f.service.HealthCheck = &model.HealthCheck{NodePort: 31000}
				f.setEndpoints(local(terminating, cluster|locally))
			}), "external 203.0.113.7 -> 198.51.100.20:80/TCP", deliver(terminating), "S27"},
		{"11: pod to VIP with external policy Local: all endpoints, no source NAT", externalLocal,
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", deliver(localPod, remotePod), "S27"},
		{"11: without a detector: local only", all(externalLocal, noDetector),
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", deliver(localPod), "S27"},
		{"12: node to node port with external policy Local: all endpoints, with source NAT", externalLocal,
			"node 172.18.0.2 -> 172.18.0.2:30080/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
		{"13: external to cluster IP with internal policy Local: local endpoint, still source NAT", internalLocal,
			"external 203.0.113.7 -> 10.96.0.10:80/TCP", deliver(localPod + "!"), "S28"},
		{"14: masquerade-all does not translate pod to VIP with external policy Local",
			all(externalLocal, func(f *fixture) {
				f.policy.MasqueradeAll = true
			}), "local pod 10.244.1.9 -> 198.51.100.20:80/TCP", deliver(localPod, remotePod), "S27"},
		{"15: source ranges block pods", all(externalLocal, ranges("203.0.113.0/24")),
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", "drop", "S26"},
		{"15: the node port bypasses them", all(externalLocal, ranges("192.0.2.0/24")),
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", deliver(localPod), "S27"},
		{"16: a VIP of ipMode Proxy is not ours", func(f *fixture) { f.service.LoadBalancerIPs = nil },
			"local pod 10.244.1.9 -> 198.51.100.20:80/TCP", "not ours", "no service"},
		{"16: its node port is kept", func(f *fixture) { f.service.LoadBalancerIPs = nil },
			"external 203.0.113.7 -> 172.18.0.2:30080/TCP", deliver(localPod+"!", remotePod+"!"), "S27"},
	})

	for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		t.Run("20: one port number with three protocols: no cross-talk for "+protocol.String(), func(t *testing.T) {
			f := newFixture()
			f.service.Ports, f.endpoints = nil, nil
			for i, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
				f.service.Ports = append(f.service.Ports,
					model.ServicePort{Name: "dns", Protocol: p, Port: 53, NodePort: 30053})
				ep := local(localPod, cluster|locally)
				ep.Port.Port, ep.Port.Protocol, ep.Target = "dns", p, netip.AddrPortFrom(addr(localPod), 5300+uint16(i))
				f.endpoints = append(f.endpoints, ep)
			}
			for _, to := range []string{"10.96.0.10:53", "198.51.100.10:53", "172.18.0.2:30053"} {
				got, err := f.oracle(t).Expect(flow(t, "external 203.0.113.7 -> "+to+"/"+protocol.String()))
				require.NoError(t, err)
				require.Len(t, got.Endpoints, 1)
				want := map[model.Protocol]uint16{model.TCP: 5300, model.UDP: 5301, model.SCTP: 5302}[protocol]
				assert.Equal(t, want, got.Endpoints[0].Endpoint.Port())
				assert.Equal(t, protocol, got.Port.Protocol)
			}
		})
	}
}
