package browser

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// diagram is a code block of a document that forges draw with Mermaid.
type diagram struct {
	file string
	line int // of the line before the text
	text string
}

// diagrams returns those of a document.
func diagrams(t *testing.T, file string) []diagram {
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var found []diagram
	open := false
	for i, line := range strings.Split(string(content), "\n") {
		switch mark := strings.TrimSpace(line); {
		case !open && mark == "```mermaid":
			open = true
			found = append(found, diagram{file: file, line: i + 1})
		case open && mark == "```":
			open = false
		case open:
			found[len(found)-1].text += line + "\n"
		}
	}
	assert.False(t, open, "%s: the last diagram has no end", file)
	return found
}

// mermaidPage is a page with Mermaid.
type mermaidPage struct{ *tab }

func newMermaidPage(t *testing.T) mermaidPage {
	t.Helper()
	program := fromNPM(t, "mermaid")
	tab := newTab(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mermaid.js" {
			w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
			_, _ = w.Write(program)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<!doctype html><link rel="icon" href="data:,"><script src="mermaid.js"></script>`))
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // or the browser's would keep the server
	tab.do(visit(server.URL), until("window.mermaid"), script("mermaid.initialize({startOnLoad: false})"))
	return mermaidPage{tab}
}

var errorLine = regexp.MustCompile(`on line (\d+)`)

// draw returns the picture, or an error that names the place in the document.
func (p mermaidPage) draw(d diagram) (string, error) {
	text, err := json.Marshal(d.text)
	if err != nil {
		return "", err
	}
	type result struct{ SVG, Error string }
	drawn, err := run(p.tab, chromedp.Evaluate[result](fmt.Sprintf(
		`mermaid.render("drawn", %s).then(d => ({SVG: d.svg}), e => ({Error: String(e.message ?? e)}))`, text),
		chromedp.EvalAwaitPromise))
	if err == nil && drawn.Error == "" {
		return drawn.SVG, nil
	}
	line := d.line
	if m := errorLine.FindStringSubmatch(drawn.Error); m != nil {
		n, _ := strconv.Atoi(m[1])
		line += n
	}
	if err != nil {
		return "", fmt.Errorf("%s:%d: %w", d.file, line, err)
	}
	return "", fmt.Errorf("%s:%d: %s", d.file, line, drawn.Error)
}

// TestDiagrams: Mermaid draws every diagram of the documentation.
func TestDiagrams(t *testing.T) {
	p := newMermaidPage(t)
	number := 0
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "dist" || d.Name() == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		for _, diagram := range diagrams(t, path) {
			number++
			svg, err := p.draw(diagram)
			if assert.NoError(t, err) {
				assert.Contains(t, svg, "<svg", "%s:%d", path, diagram.line)
			}
		}
		return nil
	})
	require.NoError(t, err)
	assert.NotZero(t, number)
}

// TestABrokenDiagram: an error names file and line.
func TestABrokenDiagram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken.md")
	text := "# Title\n\n```mermaid\nflowchart LR\n    a --> b\n    b --> [\n```\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	found := diagrams(t, file)
	require.Len(t, found, 1)
	_, err := newMermaidPage(t).draw(found[0])
	require.ErrorContains(t, err, file+":6: Parse error on line 3:")
}
