package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// waitTimeout is how long a step of a test waits for the browser before it counts as stuck.
const waitTimeout = 5 * time.Minute

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
		chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1280, 860),
		chromedp.WSURLReadTimeout(waitTimeout))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	tab := &tab{t: t, ctx: ctx}
	stuck := time.AfterFunc(waitTimeout, cancel) // not a context's timeout: this context owns the browser
	require.NoError(t, chromedp.Listen(ctx, tab.note))
	stuck.Stop()
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

// do runs the steps of a reader. If one fails, the test fails with what the page shows.
func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, step := range steps {
		if _, err := run(b, step); err != nil {
			shown, _ := run(b, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText"))
			require.NoError(b.t, err, "%s", shown)
		}
	}
}

// run runs a step, and returns its result.
func run[T any](b *tab, step chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, waitTimeout)
	defer cancel()
	return chromedp.Run(ctx, step)
}

// value returns the value of an expression.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := run(b, chromedp.Evaluate[T](expression))
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

// enter presses the Enter key. chromedp.KeyEvent sends the key and its character one after the other, so that the
// character reaches whatever has the focus after the key has changed the view.
func enter() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		key := kb.Keys['\r']
		event := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key.Key, Code: key.Code,
			Text: key.Text, NativeVirtualKeyCode: key.Native, WindowsVirtualKeyCode: key.Windows}
		if _, err := cdp.Call(ctx, target, input.DispatchKeyEvent, event); err != nil {
			return err
		}
		event.Type, event.Text = input.DispatchKeyEventTypeKeyUp, ""
		_, err := cdp.Call(ctx, target, input.DispatchKeyEvent, event)
		return err
	})
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

// package from the npm registry: see ./npm.
func fromNPM(t *testing.T, name string) []byte {
	t.Helper()
	need.Program(t, "npm")
	var stdout, stderr bytes.Buffer
	download := exec.CommandContext(t.Context(), "./npm", name)
	download.Stdout, download.Stderr = &stdout, &stderr
	err := download.Run()
	need.That(t, err == nil, name+" from the npm registry: "+stderr.String())
	return stdout.Bytes()
}

// decoded returns the value of an expression, which may be a promise.
func decoded[T any](b *tab, expression string) (v T) {
	b.t.Helper()
	text, err := run(b, chromedp.Evaluate[string](
		"Promise.resolve("+expression+").then(JSON.stringify)", chromedp.EvalAwaitPromise))
	require.NoError(b.t, err, expression)
	require.NoError(b.t, json.Unmarshal([]byte(text), &v))
	return v
}
