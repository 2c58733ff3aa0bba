package browser

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/page"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// patience is how long a test waits for a browser before it counts as stuck.
const patience = 2 * time.Minute

// tab is a tab of a headless Chromium. It notes what a page does that it should not.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string
	mischief []string // errors, dialogs, and what the content security policy stopped
}

// newTab starts a browser.
func newTab(t *testing.T) *tab {
	t.Helper()
	program := need.Program(t, "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		// CI runs as root
		chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1280, 860))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	tab := &tab{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, tab.note))
	tab.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		if _, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, target, cdplog.Enable, cdp.Empty{})
		return err
	}))
	return tab
}

func (b *tab) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.mischief = append(b.mischief, "exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.mischief = append(b.mischief, fmt.Sprint("console: ", e.Type))
	case *cdplog.EventEntryAdded:
		if !strings.Contains(e.Entry.Text, "400 (Bad Request)") { // to malformed questions
			b.mischief = append(b.mischief, fmt.Sprintf("%v: %s", e.Entry.Source, e.Entry.Text))
		}
	case *cdppage.EventJavascriptDialogOpening:
		b.mischief = append(b.mischief, "dialog: "+e.Message)
	}
}

// behaved fails if a page did anything wrong, or sent a request to anything but its own proxy.
func (b *tab) behaved(base string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.Empty(b.t, b.mischief)
	assert.NotEmpty(b.t, b.requests)
	for _, url := range b.requests {
		assert.True(b.t, strings.HasPrefix(url, base) || url == "about:blank", "the page asks for %s", url)
	}
}

// do runs the steps of a reader.
func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// value returns the value of an expression.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return v
}

// script runs statements.
func script(statements string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Evaluate[bool](statements+"; true")(ctx, target)
		return chromedp.Void{}, err
	}
}

// until waits until an expression is true. It polls from outside, because the content security policy forbids
// chromedp's polling within the page.
func until(expression string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			if ok, err := chromedp.Evaluate[bool]("Boolean("+expression+")")(ctx, target); ok {
				return chromedp.Void{}, nil
			} else if ctx.Err() != nil {
				return chromedp.Void{}, fmt.Errorf("waiting for %s: %w", expression, err)
			}
			select {
			case <-ctx.Done():
				return chromedp.Void{}, fmt.Errorf("waiting for %s: %w", expression, ctx.Err())
			case <-ticker.C:
			}
		}
	}
}

// text waits until an element shows a text.
func text(selector, want string) chromedp.Action[chromedp.Void] {
	return until(fmt.Sprintf("document.querySelector(%q)?.textContent.includes(%q)", selector, want))
}

// focus gives an element the keyboard focus, as the Tab key would.
func focus(selector string) chromedp.Action[chromedp.Void] {
	return script(fmt.Sprintf("document.querySelector(%q).focus()", selector))
}

// fill replaces the text of a field in the form about packets, and submits the form.
func fill(selector, text string) chromedp.Action[chromedp.Void] {
	return script(fmt.Sprintf("document.querySelector(%q).value = %q; document.querySelector('#flow').requestSubmit()",
		selector, text))
}

// visit goes to a page.
func visit(url string) chromedp.Action[chromedp.Void] { return chromedp.Navigate(url) }

// open goes to a view of the loaded page.
func open(fragment string) chromedp.Action[chromedp.Void] {
	return script(fmt.Sprintf("location.hash = %q", fragment))
}

// mock runs the example, and returns the address of its page.
func mock(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "mock")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/mock")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := exec.CommandContext(t.Context(), program, "--page", "--page-address", "127.0.0.1:0", "--pause", "24h")
	stdout, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	t.Cleanup(func() { _ = run.Wait() }) // it ends with the test's context
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	_, url, ok := strings.Cut(strings.TrimSpace(line), "The page is at ")
	require.True(t, ok, line)
	return url
}

// A reader without a mouse finds a service, reads where its traffic goes, and asks about a packet.
func TestTheMocksPage(t *testing.T) {
	b := newTab(t)
	url := mock(t)
	b.do(visit(url), until("document.querySelectorAll('#rows a').length === 5"),
		text("#node", "node node-1, zone-a · 5 services"), text("#health", "IPv4 applied"),
		text("#count", "5 services"))

	// The slash leads to the search, the arrows through the list, Enter to the service.
	slash := script("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
	b.do(slash, until("document.activeElement.id === 'q'"), chromedp.KeyEvent("10.96.0.10"),
		until("document.querySelectorAll('#rows a').length === 1"),
		chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter), text("#service h2", "kube-system/kube-dns"))
	shown := value[string](b, "document.querySelector('#service').textContent")
	for _, want := range []string{"anyone", "10.96.0.10:53/UDP", "any endpoint", "10.1.1.10:53",
		"kube-system/coredns-a",
		"not used", "zone hint names zone-b", "Selected by topology: zone hints: endpoints for zone-a"} {
		assert.Contains(t, shown, want)
	}
	b.do(focus("#service .tabs button:nth-child(2)"), chromedp.KeyEvent(kb.Enter),
		text("#service svg", "10.96.0.10:53/TCP"),
		until("document.activeElement.getAttribute('aria-pressed') === 'true'"),
		focus("#service summary"), chromedp.KeyEvent(kb.Enter),
		until("document.querySelector('#service details').open"),
		text("#service pre", "10.96.0.10:53/TCP"))

	// Links of the service lead to the question about a packet.
	b.do(open("#/service/shop/web"), text("#service h2", "shop/web"), text("#service svg", "this node"),
		focus("#service a.mono"), chromedp.KeyEvent(kb.Enter), until("document.activeElement.id === 'source'"),
		chromedp.KeyEvent("shop/cart-a"), chromedp.KeyEvent(kb.Enter),
		text("#answer .verdict", "The packet is delivered"),
		text("#answer", "shop/web-a"), text("#answer .reasons", "S28"))
	b.do(fill("#to", "10.96.0.10:99"), text("#answer .verdict", "The packet is rejected"),
		fill("#to", "nowhere"), text("#answer .warning", "not ADDRESS:PORT"))

	b.do(open("#/activity"), text("#events", "5 services with"), text("#families", "last applied"),
		text("#repairs", "This backend does not report repairs"))

	// The first link of the page leads to its content, whatever that shows.
	for _, view := range []struct{ fragment, section string }{
		{"#/packet", "packet"}, {"#/activity", "activity"}, {"#/service/shop/web", "service"}} {
		b.do(open(view.fragment), until("document.getElementById('"+view.section+"').offsetParent"),
			focus(".skip"), chromedp.KeyEvent(kb.Enter), until("document.activeElement.id === 'main'"))
		assert.Equal(t, view.fragment, value[string](b, "location.hash"))
	}
	b.behaved(url)
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
		return script("document.querySelector('#from').value = 'node'; showSource(); " +
			"document.querySelector('#to').value = '" + to + "'; document.querySelector('#flow').requestSubmit()")
	}

	b.do(visit(server.URL+"#/packet"), ask("192.0.2.1:1111"))
	select {
	case <-held:
	case <-b.ctx.Done():
		t.Fatal("the page did not ask")
	}
	b.do(ask("192.0.2.1:2222"), text("#answer", "192.0.2.1:2222"))
	close(release)
	b.do(until("performance.getEntriesByType('resource').filter((e) => e.name.includes('api/flow')).length === 2"))
	assert.Contains(t, value[string](b, "document.querySelector('#answer').textContent"), "192.0.2.1:2222")
	b.behaved(server.URL)
}

// look writes a screenshot to the directory KPL_SCREENSHOTS, if that is set.
func (b *tab) look(name string) {
	b.t.Helper()
	directory := os.Getenv("KPL_SCREENSHOTS")
	if directory == "" {
		return
	}
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	picture, err := png.Decode(bytes.NewReader(shot))
	require.NoError(b.t, err)
	var small bytes.Buffer
	require.NoError(b.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, fewColours(picture)))
	require.NoError(b.t, os.WriteFile(filepath.Join(directory, name+".png"), small.Bytes(), 0o644))
}

// prefer has the reader prefer a colour scheme, "light" or "dark".
func prefer(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}

// TestItFitsTheReader: in the dark, and on a telephone. With KPL_SCREENSHOTS it writes screenshots to that directory;
// page.png is the one in docs.
func TestItFitsTheReader(t *testing.T) {
	b := newTab(t)
	url := mock(t)
	views := []struct{ name, fragment, wait, with string }{
		{"page", "#/service/shop/web", "#service svg", "10.96.10.1:443/TCP"},
		{"dns", "#/service/kube-system/kube-dns", "#service svg", "zone hint names"},
		{"packet", "#/packet?to=10.96.0.10:53/UDP", "#node", "node-1"},
		{"activity", "#/activity", "#events", "listed"},
		{"list", "#/", "#rows", "kube-dns"},
	}
	b.do(visit(url), text("#count", "5 services"))
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.do(prefer(scheme), chromedp.EmulateViewport(width, 860))
			for _, v := range views {
				b.do(open(v.fragment), text(v.wait, v.with))
				if v.name == "packet" {
					b.do(fill("#source", "shop/web-a"), text("#answer", "S28"))
				}
				assert.False(t, value[bool](b, "document.documentElement.scrollWidth > innerWidth"),
					"%s is wider than %d", v.name, width)
				b.look(strings.TrimSuffix(fmt.Sprintf("%s-%s-%d", v.name, scheme, width), "-light-1280"))
			}
			for _, selector := range []string{"body", "header"} {
				brightness := value[float64](b,
					fmt.Sprintf("getComputedStyle(document.querySelector(%q)).backgroundColor"+
						".match(/\\d+/g).slice(0, 3).reduce((sum, c) => sum + Number(c) / 3, 0)", selector))
				if scheme == "dark" {
					assert.Less(t, brightness, 64.0, "%s in the dark", selector)
				} else {
					assert.Greater(t, brightness, 192.0, "%s in the light", selector)
				}
			}
		}
	}
	b.behaved(url)
}

// fewColours returns a picture in its 256 most frequent colours, so that it takes little space in the repository.
func fewColours(picture image.Image) image.Image {
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA) }
	r := picture.Bounds()
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	var palette color.Palette
	for _, c := range colours[:min(256, len(colours))] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for c := range count {
		index[c] = uint8(palette.Index(c))
	}
	few := image.NewPaletted(r, palette)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			few.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	return few
}

// service returns one with a cluster IP.
func service(namespace, name string, n int) *model.Service {
	return &model.Service{
		Name: model.ServiceName{Namespace: namespace, Name: name}, Type: model.ServiceTypeClusterIP,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})},
		Ports: []model.ServicePort{{Name: name, Protocol: model.TCP, Port: 80,
			RoutesIPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true})}},
	}
}

// Whatever users can name is shown as text, and changes appear by themselves.
func TestEvilNames(t *testing.T) {
	const evil = `<img src=x onerror=alert(1)>"'><script>alert(2)</script>{{7*7}}` + "\u202e\x00%2e%2e/\"&lt;"
	p := page.New(page.Options{})
	told := &teller{text: evil}
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
	b.do(text("#rows", "<img src=x"), focus("#rows a"), chromedp.KeyEvent(kb.Enter),
		text("#service h2", `<script>alert(2)</script>`), text("#service .warning", "refused: <img"),
		text("#service svg", "10.1.1.5:8080"),
		text("#service table", "<img src=x"), text("#service pre", "<img src=x"))
	b.do(open("#/activity"), text("#events", "<img src=x"), text("#last-error", "refused: <img"),
		text("#node", "<img src=x"))
	assert.Zero(t, value[int](b,
		`document.querySelectorAll('img:not([src="icon.svg"]), script:not([src="page.js"]), iframe').length`),
		"names have become elements")

	// A service that comes and goes does so on the page, too.
	b.do(open("#/"))
	told.err = nil
	s.SetService(service("shop", "new", 2))
	require.NoError(t, s.Sync(t.Context()))
	b.do(text("#rows", "new"))
	s.DeleteService(model.ServiceName{Namespace: "shop", Name: "new"})
	require.NoError(t, s.Sync(t.Context()))
	b.do(until(`!document.querySelector('#rows').textContent.includes('new')`))
	b.behaved(server.URL)
}

// teller is a backend that describes services and fails.
type teller struct {
	sink.TeeSink
	text string
	err  error
}

func (s *teller) Sync(context.Context) error { return s.err }

func (s *teller) DescribeService(context.Context, model.ServiceName) (string, error) {
	return s.text, nil
}

// With 10,000 services the page draws a hundred rows, and finds the others.
func TestABigCluster(t *testing.T) {
	p := page.New(page.Options{})
	s := p.Sink(nil)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	for n := range 10_000 {
		svc := service("shop", fmt.Sprintf("service-%05d", n), n)
		s.SetService(svc)
		for i := range 10 {
			target := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(100 + i), byte(n >> 8), byte(n)}), 8080)
			s.SetEndpoint(&model.Endpoint{Port: svc.PortName(svc.Ports[0]), Target: target, Sets: model.ClusterSet,
				Ready: true})
		}
	}
	require.NoError(t, s.Sync(t.Context()))
	b := newTab(t)
	t.Cleanup(server.CloseClientConnections)
	began := time.Now()
	b.do(visit(server.URL), until("document.querySelectorAll('#rows a').length === 100"))
	t.Logf("first 100 of 10,000 services on the screen after %v", time.Since(began).Round(time.Millisecond))
	b.do(text("#count", "1 to 100 of 10000 services"), focus("#next"), chromedp.KeyEvent(kb.Enter),
		text("#count", "101 to 200 of 10000"), focus("#q"), chromedp.KeyEvent("service-0777"),
		text("#count", "10 services"), text("#rows", "service-07779"))
	began = time.Now()
	changed := service("shop", "service-07775", 0)
	s.SetEndpoint(&model.Endpoint{Port: changed.PortName(changed.Ports[0]),
		Target: netip.MustParseAddrPort("10.200.0.1:8080"), Sets: model.ClusterSet, Ready: true})
	require.NoError(t, s.Sync(t.Context()))
	b.do(text("#rows", "11 endpoints"))
	t.Logf("one endpoint more on the screen after %v, of which the list waits up to 1 s on purpose",
		time.Since(began).Round(time.Millisecond))
	b.behaved(server.URL)
}
