package watch

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// follower decides when files have to be read again.
type follower struct {
	logger      klog.Logger
	reload      <-chan struct{}
	quiet, poll time.Duration
	path        string                // "" if there is nothing to follow but reload
	fingerprint func() string         // what poll compares
	last        string                // fingerprint, before the files were read
	notify      *fsnotify.Watcher     // nil if the system does not report changes
	watched     string                // the directory that notify watches
	isDir       bool                  // watched is the path itself, not the directory that contains it
	events      <-chan fsnotify.Event // of notify
	errors      <-chan error          // of notify
}

// follow returns a follower of the files; it must be closed.
func (f *Files) follow(logger klog.Logger, reload <-chan struct{}) *follower {
	w := &follower{
		logger: logger, reload: reload, quiet: f.quiet, poll: f.poll, path: f.path,
		fingerprint: func() string {
			where, err := f.location()
			if err != nil {
				return err.Error()
			}
			return where.fingerprint()
		},
	}
	if f.path == "" {
		return w
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.logger.Error(err, "Cannot watch files for changes; polling instead",
			"path", f.path, "every", f.poll)
		return w
	}
	w.notify, w.events, w.errors = notify, notify.Events, notify.Errors
	return w
}

// close ends what follow has started.
func (w *follower) close() {
	if w.notify == nil {
		return
	}
	if err := w.notify.Close(); err != nil {
		w.logger.Error(err, "Failed to stop watching files", "path", w.path)
	}
}

// arm starts to watch. It has to be called before the files are read, so that no later change is missed. It watches a
// directory, because files are replaced by renaming others: the directory at the path, or the one that contains the
// file at the path. If a symbolic link pointed at another directory before, it watches the new one. Windows does not
// report that the directory itself was renamed: that is noticed at the next check.
func (w *follower) arm() {
	if w.path == "" {
		return
	}
	w.last = w.fingerprint()
	if w.notify == nil {
		return
	}
	dir := w.path
	info, err := os.Stat(dir)
	w.isDir = err == nil && info.IsDir()
	if !w.isDir {
		dir = filepath.Dir(dir)
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	if dir != w.watched && w.watched != "" {
		_ = w.notify.Remove(w.watched) // an error means that it no longer exists
	}
	w.watched = dir
	// The directory may have been replaced by another one of the same name, which is watched from now on. Otherwise this
	// does nothing.
	if err := w.notify.Add(dir); err != nil {
		w.logger.V(4).Info("Cannot watch a directory for changes; polling instead", "directory", dir, "err", err)
	}
}

// wait returns true when the files have to be read again, and false when the context has ended.
func (w *follower) wait(ctx context.Context) bool {
	var poll <-chan time.Time
	if w.path != "" {
		ticker := time.NewTicker(w.poll)
		defer ticker.Stop()
		poll = ticker.C
	}
	// Files are read once they have not changed for a moment, but changes that do not stop must not delay that forever.
	quiet := time.NewTimer(math.MaxInt64)
	defer quiet.Stop()
	var isLate <-chan time.Time
	touched := func() {
		quiet.Reset(w.quiet)
		if isLate == nil {
			isLate = time.After(20 * w.quiet)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.reload:
			return true
		case <-quiet.C:
			return true
		case <-isLate:
			return true
		case event := <-w.events:
			if w.concerns(event) {
				touched()
			}
		case err := <-w.errors:
			w.logger.V(2).Info("Changes to files may have been missed; reading them again", "path", w.path, "err", err)
			touched()
		case <-poll:
			if w.fingerprint() != w.last {
				touched()
			}
		}
	}
}

// concerns reports whether the event may affect the files that are read.
func (w *follower) concerns(event fsnotify.Event) bool {
	name := filepath.Base(event.Name)
	switch {
	case event.Name == w.watched, strings.HasPrefix(name, ".."):
		return true // the directory itself, or what symbolic links in volumes of ConfigMaps point through
	case w.isDir:
		return isClusterFile(name)
	}
	return name == filepath.Base(w.path)
}
