package browser

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/node/page"
)

// looks has functions that say what is wrong with how a page looks.
//
//go:embed looks.js
var looks string

// media are the reader's preferences.
func media(features ...*emulation.MediaFeature) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: features})
		return err
	})
}

// prefer has the reader prefer a colour scheme, "light" or "dark".
func prefer(scheme string) chromedp.Action[chromedp.Void] {
	return media(&emulation.MediaFeature{Name: "prefers-color-scheme", Value: scheme})
}

// hover moves the mouse to a place.
func hover(x, y float64) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.DispatchMouseEvent,
			input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: x, Y: y})
		return err
	})
}

// look writes a screenshot to the directory in KPL_SCREENSHOTS, if there is one.
func (b *tab) look(name string) {
	directory := os.Getenv("KPL_SCREENSHOTS")
	if directory == "" {
		return
	}
	b.write(filepath.Join(directory, name+".png"), fewColours(b.screenshot()))
}

// screenshot returns what is on the screen.
func (b *tab) screenshot() image.Image {
	b.t.Helper()
	shot, err := run(b, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	picture, err := png.Decode(bytes.NewReader(shot))
	require.NoError(b.t, err)
	return picture
}

// write writes a picture as a small file.
func (b *tab) write(path string, picture image.Image) {
	b.t.Helper()
	var file bytes.Buffer
	require.NoError(b.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&file, picture))
	require.NoError(b.t, os.WriteFile(path, file.Bytes(), 0o644))
}

// aView is one of the views of the page, with what it waits for.
type aView struct {
	name, fragment, wait, with string
	compare                    bool // with the picture in testdata: what is shown never changes
}

// TestItFitsTheReader: on a desktop, a tablet and a telephone, in the light and in the dark, nothing sticks out of its
// box or of the window, no texts overlap, all can be read, also under the mouse, and axe-core finds nothing. With
// KPL_SCREENSHOTS it writes screenshots to that directory; page.png is the one in docs.
func TestItFitsTheReader(t *testing.T) {
	axe := string(fromNPM(t, "axe-core"))
	url := mock(t)
	b := newTab(t)
	flow := "#/packet?flow=pod%20shop%2Fweb-a%20-%3E%2010.96.0.10%3A53%2FUDP"
	b.inAllSizes(axe, url, []aView{
		{"page", "#/service/shop/web", "#service svg", "10.96.10.1:443/TCP", false},
		{"dns", "#/service/kube-system/kube-dns", "#service svg", "zone hint names", false},
		{"packet", flow, "#step", "Step 4 of 4", false},
		{"activity", "#/activity", "#events", "listed", false},
		{"overview", "#/", "#tiles", "connected", false},
		{"list", "#/services", "#rows", "kube-dns", false},
	})
	b.behaved(url)
}

// The page fits the screen also with 10,000 services and with hostile names, and looks as before.
func TestItFitsBigClustersAndEvilNames(t *testing.T) {
	axe := string(fromNPM(t, "axe-core"))
	p := page.New(page.Options{})
	fillBig(t, p)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	b := newTab(t)
	t.Cleanup(server.CloseClientConnections)
	b.inAllSizes(axe, server.URL, []aView{
		{"big-list", "#/services", "#rows", "service-00050", true},
		{"big-overview", "#/", "#problems-now", "more services", true},
		{"big-service", "#/service/shop/service-00042", "#service svg", "10.96.0.42", true},
		{"big-problems", "#/services?problems", "#rows", "no room", false},
		{"big-activity", "#/activity", "#events", "listed", false},
		{"big-packet", "#/packet?flow=node%20-%3E%2010.96.0.42%3A80%2FTCP", "#step", "Step 4 of 4", false},
	})
	b.behaved(server.URL)
}

// inAllSizes looks at views on all kinds of screens.
func (b *tab) inAllSizes(axe, url string, views []aView) {
	b.t.Helper()
	motion := &emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"}
	b.do(media(motion), visit(url), text("#node", "service"), until("document.querySelectorAll('#rows a').length > 0"),
		script(axe), script(looks))
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 820, 390} {
			b.do(media(motion, &emulation.MediaFeature{Name: "prefers-color-scheme", Value: scheme}),
				chromedp.EmulateViewport(width, 860))
			for _, v := range views {
				name := fmt.Sprintf("%s-%s-%d", v.name, scheme, width)
				b.do(open(v.fragment), text(v.wait, v.with), until("looks.settled()"))
				assert.Empty(b.t, decoded[[]string](b, "looks.misplaced()"), name)
				assert.Empty(b.t, decoded[[]string](b, "looks.unreadable()"), name)
				assert.Empty(b.t, decoded[[]string](b, "looks.axe()"), name)
				b.hoverAll(name)
				b.do(script("document.activeElement.blur()"))
				b.look(strings.TrimSuffix(name, "-light-1280"))
				if v.compare {
					b.resembles(name)
				}
			}
			b.isIn(scheme)
		}
	}
}

// hoverAll looks at the buttons and the first links with the mouse over them.
func (b *tab) hoverAll(name string) {
	b.t.Helper()
	for i, at := range decoded[[][2]float64](b, "looks.hoverable()") {
		b.do(hover(at[0], at[1]))
		found := decoded[[]string](b, "looks.settle().then(() => looks.unreadable(true))")
		assert.Empty(b.t, found, "%s, mouse over %d", name, i)
	}
	b.do(hover(0, 0))
}

// isIn compares the brightness of the page with the reader's preference.
func (b *tab) isIn(scheme string) {
	b.t.Helper()
	for _, selector := range []string{"body", "header"} {
		brightness := value[float64](b, fmt.Sprintf("getComputedStyle(document.querySelector(%q)).backgroundColor"+
			".match(/\\d+/g).slice(0, 3).reduce((sum, c) => sum + Number(c) / 3, 0)", selector))
		if scheme == "dark" {
			assert.Less(b.t, brightness, 64.0, "%s in the dark", selector)
		} else {
			assert.Greater(b.t, brightness, 192.0, "%s in the light", selector)
		}
	}
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
