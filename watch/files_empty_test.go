package watch

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// emptied are the ways to lose a cluster of one file by accident.
func emptied() map[string]fstest.MapFS {
	return map[string]fstest.MapFS{
		"truncated":      files("1.yaml", ""),
		"zero-filled":    files("1.yaml", strings.Repeat("\x00", len(doc("a", "1")))),
		"comments only":  files("1.yaml", "# nothing\n---\n# here\n"),
		"null":           files("1.yaml", "---\nnull\n"),
		"deleted":        files(),
		"another is new": files("1.yaml", "", "2.yaml", "# nothing\n"),
	}
}

func TestFilesThatBecomeEmptyKeepTheirObjects(t *testing.T) {
	for name, empty := range emptied() {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				f := newFilesFS(t, files("1.yaml", doc("a", "1")+doc("b", "1")))
				r := newRecorder(t)
				_, logs := startLogged(t, f, "", r)
				r.waitSynced()
				for range 2 {
					f.SetFS(empty)
					time.Sleep(time.Hour) // virtual
					assert.Equal(t, []string{"services default/a", "services default/b"}, r.names())
				}
				assert.Equal(t, 1, r.updateCount())
				if name != "zero-filled" {
					assert.Equal(t, 1, countIn(logs(), "A file that had objects is empty or gone"))
				}
				f.SetFS(files("1.yaml", doc("a", "2"))) // until there is something again
				r.waitFor("services default/a")
				assert.Equal(t, "2", ip(r, "a"))
			})
		})
	}
}

// TestFilesEmptyOneOfSeveral: the objects of an empty file stay, and those of a deleted one do not, while there are
// others.
func TestFilesEmptyOneOfSeveral(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFilesFS(t, files("1.yaml", doc("a", "1"), "2.yaml", doc("b", "1")))
		r := newRecorder(t)
		start(t, f, "", r)
		r.waitSynced()
		f.SetFS(files("1.yaml", "", "2.yaml", doc("c", "1")))
		r.waitFor("services default/a", "services default/c")
		f.SetFS(files("1.yaml", "", "2.yaml", doc("a", "2")))
		r.waitFor("services default/a")
		assert.Equal(t, "2", ip(r, "a"), "a later file counts")
		f.SetFS(files("1.yaml", doc("b", "1"), "2.yaml", doc("a", "2")))
		r.waitFor("services default/a", "services default/b")
		f.SetFS(files("2.yaml", doc("a", "2")))
		r.waitFor("services default/a")
	})
}

// TestFilesReadOnceReturnExistingObjects: a program that reads once has no last state.
func TestFilesReadOnceReturnExistingObjects(t *testing.T) {
	f := newFilesFS(t, files("1.yaml", doc("a", "1")))
	changes, err := readOnce(t, f, "")
	require.NoError(t, err)
	assert.Len(t, changes, 1)
	f.SetFS(files("1.yaml", ""))
	changes, err = readOnce(t, f, "")
	require.NoError(t, err)
	assert.Empty(t, changes)
}

func TestFilesEndBetweenDocuments(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	logger, _ := testLogger(t)
	p := newParser("", logger)
	p.begin()
	p.nodeName = "n1"
	text := doc("a", "1") + doc("b", "1")
	cancel()
	p.file(ctx, "f.yaml", []byte(text))
	assert.Empty(t, p.found)
	_, _, err := newFileState("", logger).read(ctx, location{fsys: files("f.yaml", text)})
	require.ErrorIs(t, err, context.Canceled)
}
