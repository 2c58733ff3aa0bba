package userspace

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func portOf(namespace, service string) model.PortName {
	return model.PortName{Service: model.ServiceName{Namespace: namespace, Name: service}, Port: "http",
		Protocol: model.TCP}
}

// takeAll takes as many places for a port as it may have.
func takeAll(p *places, port model.PortName) (all []*share) {
	for sh := p.tryTake(port); sh != nil; sh = p.tryTake(port) {
		all = append(all, sh)
	}
	return all
}

func TestAPortLeavesHalfOfThePlacesToOthers(t *testing.T) {
	p := newPlaces(16)
	all := takeAll(p, portOf("a", "web"))
	assert.Len(t, all, 8)
	second := takeAll(p, portOf("b", "web"))
	assert.Len(t, second, 4)
	for _, sh := range append(all, second...) {
		p.release(sh)
	}
	assert.Zero(t, p.taken)
	assert.Empty(t, p.shares.ports)
	assert.Empty(t, p.shares.namespaces)
}

func TestANamespaceOfManyServicesLeavesAQuarterToOthers(t *testing.T) {
	p := newPlaces(1000)
	n := 0
	for i := range 1000 {
		n += len(takeAll(p, portOf("a", fmt.Sprint("web-", i))))
	}
	assert.Equal(t, 750, n)
	assert.Len(t, takeAll(p, portOf("b", "web")), 125)
}

// The first that waits may have no place even though one is free; the next one may.
func TestAPlaceGoesToTheFirstThatMayHaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(4)
		busy, other := portOf("a", "busy"), portOf("b", "other")
		all := append(takeAll(p, busy), takeAll(p, other)...)
		require.Len(t, all, 3)
		last := takeAll(p, portOf("c", "last"))
		require.Len(t, last, 1)

		got := make(chan *share, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { got <- p.take(ctx, busy) }()
		synctest.Wait()
		newcomer := portOf("d", "newcomer")
		go func() { got <- p.take(t.Context(), newcomer) }()
		synctest.Wait()
		require.Empty(t, got)

		p.release(last[0])
		assert.Equal(t, newcomer, (<-got).port)
		synctest.Wait()
		require.Empty(t, got)
		cancel()
		assert.Nil(t, <-got)
		assert.Empty(t, p.waiting)
		assert.Equal(t, 4, p.taken)
	})
}

func TestAPlaceMovesToThePortThatTakesOverAFrontend(t *testing.T) {
	p := newPlaces(16)
	sh := p.move(p.tryTake(portOf("a", "web")), portOf("b", "web"))
	assert.Equal(t, portOf("b", "web"), sh.port)
	assert.Equal(t, 1, p.taken)
	assert.Len(t, p.shares.ports, 1)
	assert.Len(t, p.shares.namespaces, 1)
	assert.Equal(t, 1, sh.namespace.taken)
}

// A namespace that sends from ever new ports gets no flow at the expense of one that has fewer.
func TestFlowsOfOneNamespaceDoNotReplaceThoseOfOthers(t *testing.T) {
	var lines []string
	logger := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	b := &Backend{ctx: klog.NewContext(t.Context(), logger), options: Options{tuning: tuning{MaxFlows: 8}}, flows: map[*flow]bool{},
		flowShares: newShares()}
	add := func(namespace string, i int) *flow {
		_, server := net.Pipe()
		fl := &flow{client: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i)), server: server}
		fl.used.Store(int64(i))
		b.addFlow(fl, portOf(namespace, "dns"))
		return fl
	}
	dns := []*flow{add("kube-system", 0), add("kube-system", 1), add("kube-system", 2)}
	for i := range 100 {
		add("flood", 10+i)
	}
	for _, fl := range dns {
		assert.True(t, b.flows[fl])
	}
	assert.Len(t, b.flows, 8)
	require.Len(t, lines, 1, "for 95 flows")
	assert.Contains(t, lines[0], "New flows replace others")
	assert.Equal(t, 5, b.flowShares.ports[portOf("flood", "dns")].taken)
	for fl := range b.flows {
		b.removeFlow(fl)
	}
	assert.Empty(t, b.flowShares.ports)
	assert.Empty(t, b.flowShares.namespaces)
}
