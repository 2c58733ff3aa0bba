package dropin

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	ipvsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
)

func TestModeIPVSServesAndSetsParameters(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	beside := dataplane.TableKey{Family: model.IPv4, Name: "kube-proxy-lib-ipvs"}
	stop := r.start(t, "--proxy-mode=ipvs", "--cluster-cidr=10.244.0.0/16", "--ipvs-scheduler=wrr", "--ipvs-strict-arp",
		"--ipvs-udp-timeout=1m")
	r.waitFor(t, beside, contains("10.96.0.10 . tcp . 80"))
	require.Eventually(t, func() bool { return r.ipvs.HasLink() }, time.Minute, time.Millisecond)
	require.NoError(t, stop())
	assert.Contains(t, r.machine.ipvs.(*ipvsdataplane.Fake).Dump(),
		"-A -t 10.96.0.10:80 -s wrr -b flag-3\n-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1\n")
	assert.Equal(t, ipvsdataplane.Timeouts{UDP: time.Minute}, r.ipvs.Timeouts())
	assert.Equal(t, "1", r.file(t, "proc/sys/net/ipv4/vs/conntrack"))
	assert.Equal(t, "2", r.file(t, "proc/sys/net/ipv4/conf/all/arp_announce"))

	require.NoError(t, r.run("--cleanup"))
	assert.Empty(t, r.ipvs.Dump())
	assert.Empty(t, r.nft.Dump(beside))
}

func TestTheSectionIPVSCounts(t *testing.T) {
	c := &v1alpha2.KubeProxyConfiguration{Mode: v1alpha2.ProxyModeIPVS}
	c.IPVS.Scheduler, c.IPVS.StrictARP = "mh", true
	c.IPVS.ExcludeCIDRs = []string{"203.0.113.7/24", "010.001.0.0/16", "::ffff:192.0.2.0/120"}
	c.IPVS.TCPTimeout = metav1.Duration{Duration: time.Hour}
	o, err := ipvsOptions(c, backendOptions{}, &machine{})
	require.NoError(t, err)
	assert.Equal(t, "mh", o.Scheduler)
	assert.True(t, o.StrictARP)
	assert.Equal(t, "[203.0.113.0/24 10.1.0.0/16 192.0.2.0/24]", fmt.Sprint(o.ExcludeCIDRs))
	assert.Equal(t, time.Hour, o.Timeouts.TCP)
	assert.EqualValues(t, 1<<14, o.MasqueradeMark)

	c.IPVS.ExcludeCIDRs = []string{"x"}
	_, err = ipvsOptions(c, backendOptions{}, &machine{})
	assert.EqualError(t, err, `ipvs.excludeCIDRs[0]: "x" is not a CIDR`)
}

// A node that leaves mode ipvs of Kubernetes' own kube-proxy, for any mode, keeps the virtual servers of others.
func TestExcludedVirtualServersStayInEveryMode(t *testing.T) {
	needModesOfLinux(t)
	server := func(addr string) ipvsdataplane.Server {
		return ipvsdataplane.Server{Scheduler: "rr", ServerKey: ipvsdataplane.ServerKey{Family: model.IPv4,
			Addr: netip.MustParseAddr(addr), Port: 443, Protocol: model.TCP}}
	}
	for _, mode := range []string{"--proxy-mode=nftables", "--proxy-mode=iptables", "--proxy-mode=ipvs"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, cluster()...)
			upstream := ipvsdataplane.NewFake()
			r.machine.upstreamIPVS = upstream
			for _, a := range []string{"10.96.0.77", "203.0.113.7"} {
				require.NoError(t, upstream.AddServer(t.Context(), server(a)))
				require.NoError(t, upstream.AddAddress(t.Context(), netip.MustParseAddr(a)))
			}
			stop := r.start(t, mode, "--ipvs-exclude-cidrs=203.0.113.0/24")
			require.Eventually(t, func() bool { return !upstream.HasLink() }, time.Minute, time.Millisecond)
			require.NoError(t, stop())
			assert.Equal(t, "-A -t 203.0.113.7:443 -s rr\n", upstream.Dump())
		})
	}
}

// If virtual servers cannot be read, none are deleted.
func TestNothingIsDeletedWhileOthersVirtualServersAreNotKnown(t *testing.T) {
	m, upstream := theMachine(), ipvsdataplane.NewFake()
	require.NoError(t, upstream.AddAddress(t.Context(), netip.MustParseAddr("10.96.0.77")))
	c := &v1alpha2.KubeProxyConfiguration{}
	c.IPVS.ExcludeCIDRs = []string{"x"}
	m.setIPVS(&Config{Configuration: c})
	require.ErrorContains(t, m.cleanUpVirtualServers(t.Context(), upstream), "ipvs.excludeCIDRs[0]")
	assert.Equal(t, "address 10.96.0.77\n", upstream.Dump())
}

func TestTheInterfaceAndTheMarksOfModeIPVSAreFields(t *testing.T) {
	needModesOfLinux(t)
	m := theMachine()
	m.setIPVS(&Config{IPVSLink: "kube-ipvs0", IPVSMarks: 0x3fff})
	o, err := ipvsOptions(&v1alpha2.KubeProxyConfiguration{Mode: v1alpha2.ProxyModeIPVS}, backendOptions{}, m)
	require.NoError(t, err)
	assert.Equal(t, "kube-ipvs0", o.Link)
	assert.EqualValues(t, 0x3fff, o.Marks)
	assert.Contains(t, m.host.(*hostaddr.System).ExcludeInterfaces, "kube-ipvs0")

	for arg, want := range map[string]string{
		"--ipvs-interface=a/b": `link: "a/b" is not the name of an interface`,
		"--ipvs-marks=0xffff":  "marks: 0xffff contains masqueradeMark 0x4000",
	} {
		r := newRig(t, cluster()...)
		assert.ErrorContains(t, r.run("--proxy-mode=ipvs", arg), want)
	}
	assert.ErrorContains(t, newRig(t).run("--cleanup", "--ipvs-interface=.."), `link: ".." is not the name`)
}

func TestAMissingSchedulerFailsTheStart(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	assert.ErrorContains(t, r.run("--proxy-mode=ipvs", "--ipvs-scheduler=sed"), "modprobe ip_vs_sed")
}
