package browser

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/page"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// counter is a backend that counts so much more of each service from one question to the next.
type counter struct {
	sink.Sink
	more  map[model.ServiceName]sink.Traffic
	asked uint64
}

func (c *counter) CountTraffic(context.Context) (map[model.ServiceName]sink.Traffic, error) {
	c.asked++
	counts := map[model.ServiceName]sink.Traffic{}
	for name, more := range c.more {
		counts[name] = sink.Traffic{Connections: more.Connections * c.asked, Bytes: more.Bytes * c.asked}
	}
	return counts, nil
}

// Rates appear by themselves: of all traffic, of the services that get the most, in the list and of one service.
func TestTrafficAppears(t *testing.T) {
	p := page.New(page.Options{})
	s := p.Sink(&counter{Sink: &sink.Recorder{}, more: map[model.ServiceName]sink.Traffic{
		{Namespace: "shop", Name: "busy"}:  {Connections: 1000, Bytes: 4_000_000},
		{Namespace: "shop", Name: "quiet"}: {},
	}})
	for i, name := range []string{"busy", "quiet"} {
		s.SetService(service("shop", name, i))
	}
	require.NoError(t, s.Sync(t.Context()))
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	b := newTab(t)
	t.Cleanup(server.CloseClientConnections)
	b.do(visit(server.URL), text("#tiles", "counting"), text("#traffic", "Counting"),
		until(`/New connections[0-9.]+\/s[0-9.]+ kB\/s/.test(document.querySelector('#tiles').textContent)`),
		until(`/^shop\/busy[0-9.]+ connections\/s, [0-9.]+ kB\/s$/.test(document.querySelector('#traffic').textContent)`),
		text("#tiles", "this proxy does not tell"))
	b.do(open("#/service/shop/busy"), until(`/[0-9.]+ connections\/s, [0-9.]+ kB\/s/.test(document.querySelector('#rate').textContent)`),
		until(`/[0-9.]+ connections\/s/.test(document.querySelector('#rows li').textContent)`),
		open("#/service/shop/quiet"), text("#service h2", "shop/quiet"),
		until(`document.querySelector('#rate').textContent === '0 connections/s'`))
	b.behaved(server.URL)
}

// Rates fit as well, with more traffic than there is in the world, and for services with names that nobody would
// choose.
func TestTrafficFitsTheReader(t *testing.T) {
	axe := string(fromNPM(t, "axe-core"))
	p := page.New(page.Options{})
	c := &counter{Sink: &sink.Recorder{}, more: map[model.ServiceName]sink.Traffic{}}
	s := p.Sink(c)
	s.(sink.NodeSetter).SetNode(&model.Node{Name: "node-1"})
	for i, name := range append(evilNames(), "web", "quiet") {
		svc := service("shop", name, i)
		s.SetService(svc)
		if name != "quiet" {
			c.more[svc.Name] = sink.Traffic{Connections: 1e9, Bytes: 1e15}
		}
	}
	require.NoError(t, s.Sync(t.Context()))
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	b := newTab(t)
	t.Cleanup(server.CloseClientConnections)
	b.do(visit(server.URL), text("#traffic", "TB/s"))
	b.inAllSizes(axe, server.URL, []aView{
		{"traffic-overview", "#/", "#traffic", "M connections/s", false},
		{"traffic-list", "#/services", "#rows", "connections/s", false},
		{"traffic-service", "#/service/shop/web", "#rate", "TB/s", false},
	})
	b.behaved(server.URL)
}
