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

// counter is a backend with a service that gets a thousand connections, and four million bytes, from one question to
// the next, and one that gets none.
type counter struct {
	sink.Sink
	asked uint64
}

func (c *counter) CountTraffic(context.Context) (map[model.ServiceName]sink.Traffic, error) {
	c.asked++
	return map[model.ServiceName]sink.Traffic{{Namespace: "shop", Name: "busy"}: {Connections: 1000 * c.asked,
		Bytes: 4_000_000 * c.asked}, {Namespace: "shop", Name: "quiet"}: {}}, nil
}

// Rates appear by themselves: of all traffic, of the services that get the most, in the list and of one service.
func TestTrafficAppears(t *testing.T) {
	p := page.New(page.Options{})
	s := p.Sink(&counter{Sink: &sink.Recorder{}})
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
