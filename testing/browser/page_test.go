package browser

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/page"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A reader without a mouse finds a service, reads where its traffic goes, and asks about a packet.
func TestTheMocksPage(t *testing.T) {
	url := mock(t)
	b := newTab(t)
	b.do(visit(url), until("document.querySelectorAll('#rows a').length === 5"),
		text("#node", "node node-1, zone-a · 5 services"), text("#health", "IPv4 applied"),
		text("#tiles", "IPv4 10 · IPv6 2"), text("#problems-now", "Every service has what it asks for"),
		text("#syncs", "one Sync"), text("#families", "last applied"), text("#busiest", "No service has changed"))

	// The page opens on a service that outside clients reach, and the view of a packet on an example for it.
	assert.Equal(t, "#/service/shop/web", value[string](b, "location.hash"))
	b.do(text("#service h2", "shop/web"), text("#service figcaption", "All ready endpoints count"),
		open("#/packet"), text("#answer .flowtext", "198.51.100.7 → 203.0.113.80:443/TCP"),
		text("#answer .verdict", "The packet is delivered"), script("document.querySelector('#to').value = ''"),
		open("#/service/shop/web"), text("#service h2", "shop/web"))

	// The slash leads to the search, the arrows through the list, Enter to the service.
	slash := script("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
	b.do(slash, until("document.activeElement.id === 'q'"), chromedp.KeyEvent("10.96.0.10"),
		until("document.querySelectorAll('#rows a').length === 1"),
		chromedp.KeyEvent(kb.ArrowDown), enter(), text("#service h2", "kube-system/kube-dns"),
		until("document.activeElement.id === 'service'"))
	shown := value[string](b, "document.querySelector('#service').textContent")
	for _, want := range []string{"anyone", "10.96.0.10:53/UDP", "any endpoint", "10.1.1.10:53",
		"kube-system/coredns-a",
		"not used", "zone hint names zone-b", "Topology hints narrow down the endpoints: zone hints: endpoints for zone-a"} {
		assert.Contains(t, shown, want)
	}
	b.do(focus("#service .tabs button:nth-child(2)"), enter(),
		text("#service svg", "10.96.0.10:53/TCP"),
		until("document.activeElement.getAttribute('aria-pressed') === 'true'"),
		focus("#service summary"), enter(),
		until("document.querySelector('#service details').open"),
		text("#service pre", "10.96.0.10:53/TCP"))

	// Escape leads back to the row.
	b.do(chromedp.KeyEvent(kb.Escape),
		until("document.activeElement.getAttribute('href') === '#/service/kube-system/kube-dns'"))

	// Links of the service lead to the question about a packet.
	b.do(open("#/service/shop/web"), text("#service h2", "shop/web"), text("#service svg", "this node"),
		focus("#service a.mono"), enter(), until("document.activeElement.id === 'source'"),
		chromedp.KeyEvent("shop/cart-a"), enter(),
		text("#answer .verdict", "The packet is delivered"),
		text("#answer", "shop/web-a"), text("#answer .reasons", "S28"))
	link := value[string](b, "location.href")
	assert.Contains(t, link, "#/packet?flow=pod%20shop%2Fcart-a%20-%3E%2010.96.10.1%3A443%2FTCP")
	b.followsThePacket(link)
	b.do(fill("#to", "10.96.0.10:99"), text("#answer .verdict", "The packet is rejected"),
		fill("#to", "nowhere"), text("#answer .warning", "not ADDRESS:PORT"))

	b.do(open("#/activity"), text("#events", "5 services with"), text("#repairs", "This backend does not report repairs"))

	// The first link of the page leads to its content, whatever that shows.
	for _, view := range []struct{ fragment, section string }{
		{"#/packet", "packet"}, {"#/activity", "activity"}, {"#/service/shop/web", "service"}, {"#/", "overview"}} {
		b.do(open(view.fragment), until("document.getElementById('"+view.section+"').offsetParent"),
			focus(".skip"), enter(), until("document.activeElement.id === 'main'"))
		assert.Equal(t, view.fragment, value[string](b, "location.hash"))
	}
	b.behaved(url)
}

// followsThePacket opens a link to a trace, and goes with the packet from stop to stop.
func (b *tab) followsThePacket(link string) {
	b.do(visit("about:blank"), visit(link), text("#answer .verdict", "The packet is delivered"))
	assert.Equal(b.t, "shop/cart-a 10.96.10.1:443 TCP",
		value[string](b, "[...document.querySelectorAll('#source, #to, #protocol')].map((e) => e.value).join(' ')"))
	b.do(text("#step", "Step 4 of 4"), until("document.querySelector('.stops li:nth-child(4)[aria-current]')"))
	places := map[string]bool{}
	for i := 4; i >= 1; i-- {
		b.do(text("#step", fmt.Sprintf("Step %d of 4", i)), until("document.getAnimations().length === 0"))
		places[value[string](b, "getComputedStyle(document.querySelector('.dot')).transform")] = true
		if i > 1 {
			b.do(focus("#step-back"), enter())
		}
	}
	assert.Len(b.t, places, 4, "the packet moves")
	b.do(focus("#step-on"), enter(),
		text("#step", "Step 2 of 4: 10.96.10.1:443/TCP is a cluster IP"),
		until("document.querySelector('.reasons .now').textContent.includes('is a cluster IP')"))

	// A rule opens its text.
	b.do(focus(".reasons .rule"), enter(), text("#rule-text", "The cluster IP of a family is"),
		until("document.querySelector('#rule').open"), chromedp.KeyEvent(kb.Escape),
		until("!document.querySelector('#rule').open"))

	// With reduced motion the packet is there at once.
	motion := &emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"}
	b.do(media(motion), script("document.querySelector('#flow').requestSubmit()"), text("#step", "Step 4 of 4"))
	assert.True(b.t, value[bool](b, "document.getAnimations().length === 0"))
	b.do(media())
}

// The answer to the last question is the one that stays, even if that to an earlier one comes later.
func TestALateAnswerIsNotShown(t *testing.T) {
	p := page.New(page.Options{})
	s := p.Sink(nil)
	s.(sink.NodeSetter).SetNode(&model.Node{Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}})
	s.SetService(service("shop", "web", 1))
	require.NoError(t, s.Sync(t.Context()))
	held, release := make(chan struct{}, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.FormValue("q"), ":1111") {
			p.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		p.ServeHTTP(answer, r)
		held <- struct{}{}
		select {
		case <-release:
		case <-t.Context().Done():
		}
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(server.Close)
	b := newTab(t)
	t.Cleanup(server.CloseClientConnections)
	ask := func(to string) chromedp.Action[chromedp.Void] {
		return open("#/packet?flow=" + url.QueryEscape("node -> "+to+"/TCP"))
	}

	b.do(visit(server.URL+"#/activity"), ask("192.0.2.1:1111"))
	select {
	case <-held:
	case <-time.After(waitTimeout):
		t.Fatal("the page did not ask")
	}
	b.do(ask("192.0.2.1:2222"), text("#answer", "192.0.2.1:2222"))
	close(release)
	b.do(until("performance.getEntriesByType('resource').filter((e) => e.name.includes('api/flow')).length === 2"))
	assert.Contains(t, value[string](b, "document.querySelector('#answer').textContent"), "192.0.2.1:2222")
	b.behaved(server.URL)
}

// service returns one with a cluster IP.
func service(namespace, name string, n int) *model.Service {
	return &model.Service{
		Name: model.ServiceName{Namespace: namespace, Name: name}, Type: model.ServiceTypeClusterIP,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})},
		Ports: []model.ServicePort{{Name: name, Protocol: model.TCP, Port: 80,
			Routes: model.PerFamily[model.Routes]{IPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true})}}},
	}
}

// All names that users choose are shown as text, and changes appear by themselves.
func TestEvilNames(t *testing.T) {
	const evil = `<img src=x onerror=alert(1)>"'><script>alert(2)</script>{{7*7}}` + "\u202e\x00%2e%2e/\"&lt;"
	p := page.New(page.Options{})
	told := &describer{text: evil}
	s := p.Sink(told)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	s.(sink.NodeSetter).SetNode(&model.Node{Name: evil, Zone: evil,
		IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	require.NoError(t, s.Sync(t.Context()))

	b := newTab(t)
	t.Cleanup(server.CloseClientConnections) // or the browser's would keep the server
	b.do(visit(server.URL), text("#count", "No service matches"))
	svc := service(evil, evil, 1)
	svc.Labels, svc.Annotations = map[string]string{evil: evil}, map[string]string{evil: evil}
	s.SetService(svc)
	s.SetEndpoint(&model.Endpoint{Port: svc.PortName(svc.Ports[0]), Target: netip.MustParseAddrPort("10.1.1.5:8080"),
		Node: evil,
		Sets: model.ClusterSet, Ready: true, Details: model.NewDetails(model.EndpointDetails{
			TargetRef: model.TargetRef{Kind: "Pod", Namespace: evil, Name: evil}})})
	told.err = &sink.PortError{Port: svc.PortName(svc.Ports[0]), Family: model.IPv4,
		Err: fmt.Errorf("refused: %s", evil)}
	require.Error(t, s.Sync(t.Context()))
	b.do(text("#problems-now", "refused: <img"), open("#/services"), text("#rows", "<img src=x"),
		focus("#rows a"), enter(),
		text("#service h2", `<script>alert(2)</script>`), text("#service .warning", "refused: <img"),
		text("#service svg", "10.1.1.5:8080"),
		text("#service table", "<img src=x"), text("#service pre", "<img src=x"))
	b.do(open("#/activity"), text("#events", "<img src=x"), text("#last-error", "refused: <img"),
		text("#node", "<img src=x"))
	assert.Zero(t, value[int](b,
		`document.querySelectorAll('img:not([src="icon.svg"]), script:not([src$=".js"]), body script, iframe').length`),
		"names have become elements")

	// A service that comes and goes does so on the page, too.
	b.do(open("#/services"))
	told.err = nil
	s.SetService(service("shop", "new", 2))
	require.NoError(t, s.Sync(t.Context()))
	b.do(text("#rows", "new"))
	s.DeleteService(model.ServiceName{Namespace: "shop", Name: "new"})
	require.NoError(t, s.Sync(t.Context()))
	b.do(until(`!document.querySelector('#rows').textContent.includes('new')`))
	b.behaved(server.URL)
}

// describer is a backend that describes services and fails.
type describer struct {
	sink.TeeSink
	text string
	err  error
}

func (s *describer) Sync(context.Context) error { return s.err }

func (s *describer) DescribeService(context.Context, model.ServiceName) (string, error) {
	return s.text, nil
}

// fillBig feeds a page with 10,000 services. Some have evil names, some have problems.
func fillBig(t *testing.T, p *page.Page) sink.Sink {
	told := &describer{text: "rules"}
	s := p.Sink(told)
	s.(sink.NodeSetter).SetNode(&model.Node{Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}})
	evil := evilNames()
	for n := range 10_000 {
		svc := service("shop", fmt.Sprintf("service-%05d", n), n)
		if n < len(evil) {
			svc.Name.Namespace, svc.Ports[0].Name = "aaa", evil[n]
			svc.Name.Name = evil[n]
		}
		s.SetService(svc)
		if n < 3 || n == 77 {
			told.err = errors.Join(told.err, &sink.PortError{Port: svc.PortName(svc.Ports[0]), Family: model.IPv4,
				Err: errors.New("no room for " + svc.Name.Name)})
		}
		for i := range 10 {
			target := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(100 + i), byte(n >> 8), byte(n)}), 8080)
			if n%100 != 99 {
				s.SetEndpoint(&model.Endpoint{Port: svc.PortName(svc.Ports[0]), Target: target, Sets: model.ClusterSet,
					Ready: true})
			}
		}
	}
	require.Error(t, s.Sync(t.Context()))
	return s
}

// evilNames are hostile names.
func evilNames() []string {
	return []string{strings.Repeat("very-long-name-", 17), "\u202eevil\u202d rtl \u05d0\u05d1\u05d2 \u0627\u0644",
		"not \xff\xfe UTF-8 \xc3", "<b>bold</b>&amp;\u0000"}
}

// With 10,000 services the page draws a hundred rows, finds the others, and the keyboard reaches them.
func TestABigCluster(t *testing.T) {
	p := page.New(page.Options{})
	s := fillBig(t, p)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	b := newTab(t)
	t.Cleanup(server.CloseClientConnections)
	began := time.Now()
	b.do(visit(server.URL+"#/services"), until("document.querySelectorAll('#rows a').length === 100"))
	t.Logf("first 100 of 10,000 services on the screen after %v", time.Since(began).Round(time.Millisecond))

	// The arrows go on to the next hundred, and back.
	row := func(i int, name string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf("document.activeElement === document.querySelectorAll('#rows a')[%d] && "+
			"document.activeElement.textContent.includes(%q)", i, name))
	}
	b.do(text("#count", "1 to 100 of 10000 services"), focus("#rows li:last-child a"), chromedp.KeyEvent(kb.ArrowDown),
		text("#count", "101 to 200 of 10000"), row(0, "service-00100"), chromedp.KeyEvent(kb.ArrowUp),
		text("#count", "1 to 100 of"), row(99, "service-00099"), chromedp.KeyEvent(kb.PageDown),
		row(0, "service-00100"), chromedp.KeyEvent(kb.ArrowDown), row(1, "service-00101"))

	// A service far down is shown where the reader is, and has the focus.
	b.do(focus("#rows li:last-child a"), enter(), text("#service h2", "shop/service-00199"),
		until("document.activeElement.id === 'service' && scrollY > 1000"))
	assert.True(t, value[bool](b, "(() => { const r = document.querySelector('#service h2').getBoundingClientRect();"+
		" return r.top >= 0 && r.bottom <= innerHeight; })()"), "the reader sees it")
	b.do(chromedp.KeyEvent(kb.Escape), row(99, "service-00199"))

	b.do(focus("#q"), chromedp.KeyEvent("service-0777"),
		text("#count", "10 services"), text("#rows", "service-07778"))
	began = time.Now()
	changed := service("shop", "service-07775", 0)
	s.SetEndpoint(&model.Endpoint{Port: changed.PortName(changed.Ports[0]),
		Target: netip.MustParseAddrPort("10.200.0.1:8080"), Sets: model.ClusterSet, Ready: true})
	require.Error(t, s.Sync(t.Context()))
	b.do(text("#rows", "11 endpoints"), text("#busiest", "shop/service-07775"))
	t.Logf("one endpoint more on the screen after %v, of which the list waits up to 1 s on purpose",
		time.Since(began).Round(time.Millisecond))
	b.behaved(server.URL)
}
