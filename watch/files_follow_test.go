package watch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waitLong runs follower.wait in virtual time and returns how long it took.
func waitLong(t *testing.T, w *follower) time.Duration {
	t.Helper()
	begin := time.Now()
	assert.True(t, w.wait(t.Context()))
	return time.Since(begin)
}

func TestFollower(t *testing.T) {
	newFollower := func(t *testing.T) (*follower, chan fsnotify.Event) {
		events := make(chan fsnotify.Event)
		logger, _ := testLogger(t)
		return &follower{
			logger: logger, quiet: 100 * time.Millisecond, poll: 10 * time.Second, path: "/d", watched: "/d",
			isDir:  true,
			events: events, fingerprint: func() string { return "" },
		}, events
	}
	event := fsnotify.Event{Name: "/d/a.yaml", Op: fsnotify.Write}
	for _, test := range []struct {
		name string
		run  func(t *testing.T, w *follower, events chan fsnotify.Event)
	}{
		{"reads once a file was left alone for a moment", func(t *testing.T, w *follower, events chan fsnotify.Event) {
			go func() {
				for range 5 {
					events <- event
					time.Sleep(90 * time.Millisecond)
				}
			}()
			assert.Equal(t, 4*90*time.Millisecond+100*time.Millisecond, waitLong(t, w))
		}},
		{"reads in the end if changes do not stop", func(t *testing.T, w *follower, events chan fsnotify.Event) {
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case events <- event:
						time.Sleep(10 * time.Millisecond)
					case <-stop:
						return
					}
				}
			}()
			assert.Equal(t, 2*time.Second, waitLong(t, w))
			close(stop)
			<-stopped
		}},
		{"reads at once when told", func(t *testing.T, w *follower, _ chan fsnotify.Event) {
			reload := make(chan struct{}, 1)
			reload <- struct{}{}
			w.reload = reload
			assert.Zero(t, waitLong(t, w))
		}},
		{"does not read for other files", func(t *testing.T, w *follower, events chan fsnotify.Event) {
			go func() {
				for _, name := range []string{"/d/a.txt", "/d/.a.yaml.swp", "/d/a.yaml~", "/d/4913"} {
					events <- fsnotify.Event{Name: name, Op: fsnotify.Create}
				}
				time.Sleep(time.Second)
				events <- fsnotify.Event{Name: "/d/..data", Op: fsnotify.Create}
			}()
			assert.Equal(t, 1100*time.Millisecond, waitLong(t, w))
		}},
		{"reads when events may have been lost", func(t *testing.T, w *follower, _ chan fsnotify.Event) {
			errs := make(chan error, 1)
			errs <- errors.Join(fsnotify.ErrEventOverflow)
			w.errors = errs
			assert.Equal(t, 100*time.Millisecond, waitLong(t, w))
		}},
		{"looks at sizes and times regularly", func(t *testing.T, w *follower, _ chan fsnotify.Event) {
			begin := time.Now()
			w.fingerprint = func() string {
				if time.Since(begin) > 25*time.Second {
					return "changed"
				}
				return ""
			}
			assert.Equal(t, 30*time.Second+100*time.Millisecond, waitLong(t, w))
		}},
		{"watches one file only", func(t *testing.T, w *follower, events chan fsnotify.Event) {
			w.path, w.isDir = "/d/cluster", false
			go func() {
				events <- event
				time.Sleep(time.Second)
				events <- fsnotify.Event{Name: "/d/cluster", Op: fsnotify.Create}
			}()
			assert.Equal(t, 1100*time.Millisecond, waitLong(t, w))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, events := newFollower(t)
				test.run(t, w, events)
			})
		})
	}
}

func TestFollowerWatchesWhatThePathLeadsTo(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	resolved, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	for _, name := range []string{"v1", "v2"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	link := filepath.Join(dir, "link")
	logger, _ := testLogger(t)
	w := newFilesAt(t, link).follow(logger, nil)
	defer w.close()
	w.arm()
	assert.Equal(t, []string{resolved}, w.notify.WatchList(), "there is nothing at the path yet")
	for _, name := range []string{"v1", "v2"} {
		_ = os.Remove(link)
		symlink(t, name, link)
		w.arm()
		assert.Equal(t, []string{filepath.Join(resolved, name)}, w.notify.WatchList())
		w.arm()
		assert.Equal(t, []string{filepath.Join(resolved, name)}, w.notify.WatchList())
	}
}
