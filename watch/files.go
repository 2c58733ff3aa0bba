package watch

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Files is the [Source] that reads a cluster from a file, the files of a directory, or those of an fs.FS. It is safe
// for concurrent use.
//
// # What is read
//
// YAML or JSON, any number of documents to a file, as "kubectl get services,endpointslices,nodes,servicecidrs -A -o
// yaml" prints them: Services, EndpointSlices (discovery.k8s.io/v1), Nodes and ServiceCIDRs (networking.k8s.io/v1),
// alone or as items of a List. Other kinds and other nodes' Nodes are skipped, so a dump of everything works. In a
// directory, the files *.yaml, *.yml and *.json are read, in the order of their names, except hidden ones;
// subdirectories are not. An object without a namespace is in "default". If an object is defined more than once, the
// last definition is used, and the log says so.
//
// # Changes
//
// A file or directory on disk is followed; an fs.FS is read again after [Files.SetFS]. All differences, deletions
// included, are delivered in one Update. Files are read 0.1 s after the last change to them, or 2 s after the first one
// if changes do not stop; to replace a large file, write a new one and rename it. Symbolic links may be swapped, as in
// volumes of ConfigMaps. Where the system does not report changes (network file systems, for example), they are noticed
// within ten seconds. All files are then read completely, but only documents that have changed are decoded; a List is
// one document.
//
// # Malformed documents
//
// A malformed document, or item of a List, is logged with its file and number, and everything else is used, even on the
// first reading. While a file has one, no object counts as deleted because the file lacks it: the last good state
// stays, and well-formed documents can still change. A file that cannot be read is treated the same way. NUL bytes,
// which a crash may leave behind, are malformed.
//
// # Empty files
//
// A file that becomes empty, or has only comments left, does not mean that its objects are deleted: a shell's "kubectl
// get ... > file" begins that way. They stay until the file has documents again or is deleted. All objects also stay if
// no document is left anywhere, because the last file of a directory was deleted or nothing exists at the path any
// more. A List without items is a document, and means that there are no objects. If one of several files is deleted, so
// are its objects. If nothing exists at the path when Run begins, Run waits for it.
//
// Memory: only names and hashes are kept, neither objects nor texts.
type Files struct {
	path string // "" with an fs.FS
	// Pauses; tests shorten them.
	quiet time.Duration // from the last change of a file to reading it
	poll  time.Duration // between checks of sizes and times

	mu      sync.Mutex
	fsys    fs.FS                      // if it is not nil, it is read and not the path
	reloads map[chan struct{}]struct{} // one for each Run under way
}

var _ Source = (*Files)(nil)

// NewFiles returns a source that reads the file or the directory at the path. It does nothing yet, and the path need
// not exist yet.
func NewFiles(path string) (*Files, error) {
	if path == "" {
		return nil, errors.New("files source: the path is empty")
	}
	return newFiles(path, nil), nil
}

// NewFilesFS returns a source that reads the files in the root of fsys. Use fs.Sub for a directory within.
func NewFilesFS(fsys fs.FS) (*Files, error) {
	if fsys == nil {
		return nil, errors.New("files source: fsys is nil")
	}
	return newFiles("", fsys), nil
}

func newFiles(path string, fsys fs.FS) *Files {
	return &Files{path: path, fsys: fsys, quiet: 100 * time.Millisecond, poll: 10 * time.Second,
		reloads: map[chan struct{}]struct{}{}}
}

// SetFS replaces the files: from now on those in the root of fsys are read, also by every Run in progress. It does not
// wait for them to be read. With the same fsys, they are read again.
func (f *Files) SetFS(fsys fs.FS) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fsys = fsys
	for ch := range f.reloads {
		select {
		case ch <- struct{}{}:
		default: // a request is pending already
		}
	}
}

// subscribe returns the channel that notifies a Run of SetFS.
func (f *Files) subscribe() (ch chan struct{}, cancel func()) {
	ch = make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reloads[ch] = struct{}{}
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.reloads, ch)
	}
}

// location returns where the files are now.
func (f *Files) location() (location, error) {
	f.mu.Lock()
	fsys := f.fsys
	f.mu.Unlock()
	switch {
	case fsys != nil:
		return location{fsys: fsys}, nil
	case f.path != "":
		return locate(f.path)
	}
	return location{}, errors.New("no file system to read")
}

func (f *Files) read(ctx context.Context, state *fileState) ([]Change, []*documentError, error) {
	where, err := f.location()
	if err != nil {
		return nil, nil, err
	}
	return state.read(ctx, where)
}

// Run implements [Source]. The error is always nil.
func (f *Files) Run(ctx context.Context, nodeName string, h Handler) error {
	logger := klog.FromContext(ctx)
	state := newFileState(nodeName, logger)
	reload, cancel := f.subscribe()
	defer cancel()
	follow := f.follow(logger, reload)
	defer follow.close()

	synced := false
	unavailable := "" // the error that was logged last
	for {
		follow.arm() // before reading, so that no change is missed
		changes, malformed, err := f.read(ctx, state)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if unavailable != err.Error() {
				logger.Error(err, "Cannot read the cluster's files; trying again", "path", f.path)
			}
			unavailable = err.Error()
		} else {
			unavailable = ""
			for _, err := range malformed {
				logger.Error(err.err, "Skipped a malformed document; no object of its file is treated as deleted",
					"position", err.position.String())
			}
			if len(changes) > 0 {
				h.Update(changes...)
			}
			if !synced {
				synced = true
				h.Synced()
			}
		}
		if !follow.wait(ctx) {
			return nil
		}
	}
}
