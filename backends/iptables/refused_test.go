package iptables_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// refusing is a rig on a kernel without SCTP. restores counts runs of iptables-restore.
func refusing(t *testing.T) (r *rig, restores *int) {
	r, restores = newRig(t, iptables.Options{}), new(int)
	r.fakes[model.IPv4].FailRestore = func(b *dataplane.Batch) error {
		*restores++
		if strings.Contains(b.String(), "-p sctp -m sctp") {
			return errors.New("no such match")
		}
		return nil
	}
	return r, restores
}

// A node is healthy, and its flows are cleaned up, although one service needs what the kernel does not have.
func TestAServiceThatIsRefusedIsNoFailureOfItsFamily(t *testing.T) {
	r, restores := refusing(t)
	r.Set(backendtest.EveryFeature()...)
	err := r.Wave(t.Context())
	assert.Zero(t, sink.FailedFamilies(err), "%v", err)
	ports := sink.PortErrors(err)
	require.Len(t, ports, 1)
	assert.Equal(t, "voip/sip:sip/SCTP", ports[0].Port.String())
	assert.Equal(t, model.IPv4, ports[0].Family)
	require.ErrorContains(t, err, "no such match")
	assert.Contains(t, r.dump(model.IPv4), "-m bpf", "the kernel has that match, which was tried")

	*restores = 0
	require.Equal(t, ports, sink.PortErrors(r.Wave(t.Context())), "it is still left out")
	assert.Zero(t, *restores, "and nothing is tried")

	r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
	require.Equal(t, ports, sink.PortErrors(r.Wave(t.Context())))
	assert.Equal(t, 1, *restores, "others are not held up")
	assert.Contains(t, r.dump(model.IPv4), "10.244.3.5:8080")
}

func TestAServiceThatWasRefusedIsTriedAgain(t *testing.T) {
	for name, again := range map[string]func(r *rig){
		"when it changes": func(r *rig) { r.Set(fm.Endpoint("voip/sip:sip/SCTP", "10.244.2.21:5060").Build()) },
		"at a retry":      func(r *rig) { r.backend.ResyncFailed() },
		"at a resync":     func(r *rig) { r.backend.ForceResync() },
	} {
		t.Run(name, func(t *testing.T) {
			r, restores := refusing(t)
			r.Set(backendtest.EveryFeature()...)
			require.Len(t, sink.PortErrors(r.Wave(t.Context())), 1)

			*restores = 0
			again(r)
			require.Len(t, sink.PortErrors(r.Wave(t.Context())), 1)
			assert.Positive(t, *restores)
			assert.LessOrEqual(t, *restores, 2, "a try of it alone, and what undoes that")
			assert.NotContains(t, r.dump(model.IPv4), "PROBE")

			r.fakes[model.IPv4].FailRestore = nil
			again(r)
			r.Set(fm.Service("voip/sip").DetectsLocalPods().ClusterIP("10.96.2.2").SCTPPort("sip", 5060).Build())
			require.NoError(t, r.Wave(t.Context()))
			assert.Contains(t, r.dump(model.IPv4), "-d 10.96.2.2/32 -p sctp -m sctp --dport 5060")
			assert.NotContains(t, r.dump(model.IPv4), "10.96.2.1")
		})
	}
}

func TestAServiceThatWasRefusedAndGoesIsForgotten(t *testing.T) {
	r, restores := refusing(t)
	r.Set(backendtest.EveryFeature()...)
	require.Error(t, r.Wave(t.Context()))
	r.Delete(model.ServiceName{Namespace: "voip", Name: "sip"})
	*restores = 0
	require.NoError(t, r.Wave(t.Context()))
	assert.Zero(t, *restores)
}

// A refused service keeps its addresses until it is deleted.
func TestAnAddressOfWhatIsLeftOutGoesToTheNextOne(t *testing.T) {
	r, _ := refusing(t)
	r.Set(backendtest.Node(),
		fm.Service("a/one").ClusterIP("10.96.0.1").SCTPPort("x", 80).ExternalIP("198.51.100.1").Build(),
		fm.Endpoint("a/one:x/SCTP", "10.244.2.1:80").Build())
	require.Len(t, sink.PortErrors(r.Wave(t.Context())), 1)
	r.fakes[model.IPv4].FailRestore = nil
	r.Set(fm.Service("b/two").ClusterIP("10.96.0.2").SCTPPort("x", 80).ExternalIP("198.51.100.1").Build(),
		fm.Endpoint("b/two:x/SCTP", "10.244.2.2:80").Build())
	r.Delete(model.ServiceName{Namespace: "a", Name: "one"})
	require.NoError(t, r.Wave(t.Context()))
	dump := r.dump(model.IPv4)
	assert.Contains(t, dump, "-d 198.51.100.1/32 -p sctp -m sctp --dport 80 -m comment --comment \"b/two:x\"")
	assert.NotContains(t, dump, "a/one")
}

// A protocol that no Kubernetes object can have does not cause a panic, and everything else is applied.
func TestAProtocolThatIsUnknownIsLeftOut(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.fakes[model.IPv4].FailRule = func(_ dataplane.Table, _, rule string) error {
		if !slices.ContainsFunc([]string{"-p tcp ", "-p udp ", "-p sctp "}, func(p string) bool {
			return !strings.Contains(rule, "-p ") || strings.Contains(rule, p)
		}) {
			return errors.New("no such protocol")
		}
		return nil
	}
	leavesOutUnknownProtocol(t, r)
	assert.Contains(t, r.dump(model.IPv4), "10.244.3.5:8080")
}

func leavesOutUnknownProtocol(t *testing.T, r *rig) {
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	odd := *fm.Service("odd/one").ClusterIP("10.96.9.9").Port("x", 80).Build()
	odd.Ports = slices.Clone(odd.Ports)
	odd.Ports[0].Protocol = 99
	ep := *fm.Endpoint("odd/one:x/TCP", "10.244.2.99:80").Build()
	ep.Port.Protocol = 99
	r.backend.SetService(&odd)
	r.backend.SetEndpoint(&ep)
	r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
	ports := sink.PortErrors(r.Wave(t.Context()))
	require.Len(t, ports, 1)
	assert.Equal(t, odd.Name, ports[0].Port.Service)
}

// many is a rig with 300 services, of which every tenth is refused: its protocol is one that the kernel lacks, or its
// rules contain a word that iptables does not know.
func many(t *testing.T, add func(b *fm.ServiceBuilder, refused bool) *fm.ServiceBuilder, word string) *rig {
	r := newRig(t, iptables.Options{})
	r.fakes[model.IPv4].FailRestore = func(b *dataplane.Batch) error {
		if strings.Contains(b.String(), word) {
			return errors.New("no such match")
		}
		return nil
	}
	r.Set(backendtest.Node())
	for i := range 300 {
		b := fm.Service(fmt.Sprint("many/s", i)).ClusterIP(fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250))
		s := add(b, i%10 == 5).Build()
		r.Set(s, fm.Endpoint(s.PortName(s.Ports[0]).String(), fmt.Sprintf("10.244.2.%d:80", 1+i%250)).Build())
	}
	return r
}

// requireOnly checks that 30 of the 300 are left out, and the others are served.
func requireOnly(t *testing.T, r *rig, err error) {
	t.Helper()
	require.Len(t, sink.PortErrors(err), 30)
	for i := range 300 {
		addr := fmt.Sprintf("-d 10.96.%d.%d/32", i/250, 1+i%250)
		require.Equal(t, i%10 != 5, strings.Contains(r.dump(model.IPv4), addr), addr)
	}
}

func TestAProtocolThatTheKernelLacksCostsNoServiceOfAnother(t *testing.T) {
	r := many(t, func(b *fm.ServiceBuilder, refused bool) *fm.ServiceBuilder {
		if refused {
			return b.SCTPPort("x", 80)
		}
		return b.Port("x", 80)
	}, "-p sctp -m sctp")
	requireOnly(t, r, r.Wave(t.Context()))
}

// One Sync tries no more than so many times; the next ones find out the rest.
func TestWhatIsInDoubtIsFoundOutByTheNextSyncs(t *testing.T) {
	r := many(t, func(b *fm.ServiceBuilder, refused bool) *fm.ServiceBuilder {
		if refused {
			return b.Port("x", 81)
		}
		return b.Port("x", 80)
	}, "--dport 81 ")
	first := sink.PortErrors(r.Wave(t.Context()))
	require.Greater(t, len(first), 30)
	for range 20 {
		_ = r.Wave(t.Context())
	}
	requireOnly(t, r, r.Wave(t.Context()))
}
