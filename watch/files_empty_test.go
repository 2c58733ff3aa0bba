package watch

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// emptied are the ways in which a cluster of one file is lost by accident.
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
				f := newFilesFS(t, files("1.yaml", doc("a", "1")+doc("b", "1")), FilesOptions{})
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

func TestFilesThatStayEmptyCountAsDeleted(t *testing.T) {
	for name, empty := range emptied() {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				f := newFilesFS(t, files("1.yaml", doc("a", "1")), FilesOptions{EmptyAfter: time.Minute})
				r := newRecorder(t)
				start(t, f, "", r)
				r.waitSynced()
				for range 2 { // something in between begins the time anew
					f.SetFS(empty)
					time.Sleep(50 * time.Second) // virtual
					f.SetFS(files("1.yaml", doc("a", "1")))
					synctest.Wait()
				}
				f.SetFS(empty)
				time.Sleep(59 * time.Second) // virtual
				assert.Equal(t, []string{"services default/a"}, r.names())
				if name == "zero-filled" { // malformed, and not empty
					time.Sleep(time.Hour)
					assert.Equal(t, []string{"services default/a"}, r.names())
					return
				}
				r.waitFor()
				f.SetFS(files("1.yaml", doc("a", "2")))
				r.waitFor("services default/a")
			})
		})
	}
}

// TestFilesEmptyOneOfSeveral: the objects of an empty file stay, and those of a deleted one do not, while there are
// others.
func TestFilesEmptyOneOfSeveral(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFilesFS(t, files("1.yaml", doc("a", "1"), "2.yaml", doc("b", "1")), FilesOptions{})
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
	f := newFilesFS(t, files("1.yaml", doc("a", "1")), FilesOptions{})
	changes, err := f.Read(t.Context(), "")
	require.NoError(t, err)
	assert.Len(t, changes, 1)
	f.SetFS(files("1.yaml", ""))
	changes, err = f.Read(t.Context(), "")
	require.NoError(t, err)
	assert.Empty(t, changes)
}

// TestFilesAPathThatStaysMissingCountsAsDeleted does to the path on disk what emptied does to files.
func TestFilesAPathThatStaysMissingCountsAsDeleted(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "cluster")
	write(t, path, doc("a", "1"))
	f := newFilesAt(t, path)
	logger, _ := testLogger(t)
	s := newFileState(filter{}, time.Hour, logger)
	changes, _, err := f.read(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, changes, 1)
	require.NoError(t, os.Remove(path))
	for range 2 {
		changes, _, err = f.read(t.Context(), s)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.Empty(t, changes)
	}
	due, ok := s.due()
	require.True(t, ok)
	require.WithinDuration(t, time.Now().Add(time.Hour), due, time.Minute)
	s.emptySince[path] = time.Now().Add(-time.Hour)
	changes, _, err = f.read(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []string{"-services default/a"}, changeNames(changes))
	_, ok = s.due()
	require.False(t, ok)
}

func TestFilesEndBetweenDocuments(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	logger, _ := testLogger(t)
	p := newParser("", logger)
	p.begin()
	p.filter.nodeName = "n1"
	text := doc("a", "1") + doc("b", "1")
	cancel()
	p.file(ctx, "f.yaml", []byte(text))
	assert.Empty(t, p.found)
	_, _, err := newFileState(filter{}, 0, logger).read(ctx, location{fsys: files("f.yaml", text)})
	require.ErrorIs(t, err, context.Canceled)
}
