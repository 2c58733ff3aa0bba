package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// FilesOptions configure [Files]. The zero value selects the objects that kube-proxy watches, and skips malformed
// documents.
type FilesOptions struct {
	// ServiceProxyName selects the Services whose label service.kubernetes.io/service-proxy-name has this value. If it
	// is empty, those without the label are selected. The label of EndpointSlices does not matter.
	ServiceProxyName string
	// HeadlessServices also delivers headless Services and their EndpointSlices, for programs that set the option of
	// that name in localstate.Options.
	HeadlessServices bool
	// Strict makes Run return an error instead of logging it and going on: when nothing exists at the path, a file
	// cannot be read or a document is malformed. It is for programs that run once, and for tests.
	Strict bool
	// EmptyAfter is how long files that had objects may be empty, or be gone from a directory without any other file,
	// before their objects count as deleted. 0: the objects stay until a file can be read again.
	EmptyAfter time.Duration
}

// Files is the [Source] that reads a cluster from a file, the files of a directory, or those of an fs.FS. It is safe
// for concurrent use.
//
// # What is read
//
// YAML or JSON, any number of documents to a file, as "kubectl get services,endpointslices,nodes,servicecidrs -A -o
// yaml" prints them: Services, EndpointSlices (discovery.k8s.io/v1), Nodes and ServiceCIDRs (networking.k8s.io/v1),
// alone or as items of a List. Other kinds are skipped, and S1 is applied, so a dump of everything works. Of a
// directory, the files *.yaml, *.yml and *.json are read, in the order of their names, except hidden ones; directories
// within are not. An object without a namespace is in "default". If an object is defined more than once, the last
// definition is used, and the log says so.
//
// # Changes
//
// A file or directory on disk is followed; an fs.FS is read again after [Files.Reload] or [Files.SetFS]. All
// differences, deletions included, are one Update. Files are read 0.1 s after the last change to them, or 2 s after the
// first one if changes do not stop; to replace a large file, write a new one and rename it. Symbolic links may be
// swapped, as in volumes of ConfigMaps. Where the system does not report changes (network file systems, for example),
// they are noticed within ten seconds. All files are then read completely, but only documents that have changed are
// decoded; a List is one document.
//
// # Malformed documents
//
// A malformed document, or item of a List, is reported with its file and number, and everything else is used, even the
// first time, unless Strict is set. While a file has one, no object counts as deleted because the file lacks it: the
// last good state stays, and well-formed documents can still change. A file that cannot be read is treated the same
// way. NUL bytes, which a crash may leave behind, are malformed.
//
// # Empty files
//
// A file that becomes empty, or has only comments left, does not mean that its objects are deleted: a shell's "kubectl
// get ... > file" begins that way. They stay until the file has documents again or is deleted. Likewise all objects
// stay if no document is left anywhere, because the last file of a directory was deleted or nothing exists at the path
// any more. EmptyAfter limits that. A List without items is a document, and means that there are no objects. If one of
// several files is deleted, so are its objects. If nothing exists at the path when Run begins, Run waits for it.
//
// Memory: only names and hashes are kept, neither objects nor texts.
type Files struct {
	path string // "" with an fs.FS
	opts FilesOptions
	// Pauses; tests shorten them.
	quiet time.Duration // from the last change of a file to reading it
	poll  time.Duration // between looks at sizes and times

	mu      sync.Mutex
	fsys    fs.FS                      // if it is not nil, it is read and not the path
	reloads map[chan struct{}]struct{} // one for each Run under way
}

var _ Source = (*Files)(nil)

// NewFiles returns a source that reads the file or the directory at the path. It does nothing yet, and the path need
// not exist yet.
func NewFiles(path string, opts FilesOptions) (*Files, error) {
	if path == "" {
		return nil, errors.New("files source: the path is empty")
	}
	return newFiles(&Files{path: path, opts: opts})
}

// NewFilesFS returns a source that reads the files in the root of fsys. Use fs.Sub for a directory within.
func NewFilesFS(fsys fs.FS, opts FilesOptions) (*Files, error) {
	if fsys == nil {
		return nil, errors.New("files source: fsys is nil")
	}
	return newFiles(&Files{fsys: fsys, opts: opts})
}

func newFiles(f *Files) (*Files, error) {
	errs := []error{validateServiceProxyName(f.opts.ServiceProxyName)}
	if f.opts.EmptyAfter < 0 {
		errs = append(errs, fmt.Errorf("EmptyAfter %v is negative", f.opts.EmptyAfter))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("files source: %w", err)
	}
	f.quiet, f.poll = 100*time.Millisecond, 10*time.Second
	f.reloads = map[chan struct{}]struct{}{}
	return f, nil
}

// Reload makes every current Run read again. It does not wait for that.
func (f *Files) Reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reload()
}

// SetFS replaces the files: from now on those in the root of fsys are read, also by every Run in progress. It does not
// wait for them to be read.
func (f *Files) SetFS(fsys fs.FS) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fsys = fsys
	f.reload()
}

func (f *Files) reload() {
	for ch := range f.reloads {
		select {
		case ch <- struct{}{}:
		default: // it will read anyway
		}
	}
}

// subscribe returns the channel that notifies a Run of Reload.
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

// Read reads the files once and returns what Run would deliver first, for programs that need no more. The error joins a
// [DocumentError] for everything malformed; the changes are what could be read, and nil if there is nothing at the
// path.
func (f *Files) Read(ctx context.Context, nodeName string) ([]Change, error) {
	changes, malformed, err := f.read(ctx, f.newState(ctx, nodeName))
	if err != nil {
		return nil, fmt.Errorf("files source: %w", err)
	}
	if err := joinDocumentErrors(malformed); err != nil {
		return changes, fmt.Errorf("files source: %w", err)
	}
	return changes, nil
}

func (f *Files) newState(ctx context.Context, nodeName string) *fileState {
	only := filter{nodeName: nodeName, serviceProxyName: f.opts.ServiceProxyName, headless: f.opts.HeadlessServices}
	return newFileState(only, f.opts.EmptyAfter, klog.FromContext(ctx))
}

func (f *Files) read(ctx context.Context, state *fileState) (changes []Change, malformed []*DocumentError, err error) {
	where, err := f.location()
	if err == nil {
		changes, malformed, err = state.read(ctx, where)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if changes = state.gone(); len(changes) > 0 {
			return changes, nil, nil
		}
	}
	return changes, malformed, err
}

// ServiceProxyName returns the option, for programs that read from the source.
func (f *Files) ServiceProxyName() string { return f.opts.ServiceProxyName }

// Run implements [Source]. It fails only if Strict is set.
func (f *Files) Run(ctx context.Context, nodeName string, h Handler) error {
	logger := klog.FromContext(ctx)
	state := f.newState(ctx, nodeName)
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
		if f.opts.Strict && (err != nil || len(malformed) > 0) {
			return fmt.Errorf("files source: %w", errors.Join(err, joinDocumentErrors(malformed)))
		}
		if err != nil {
			if unavailable != err.Error() {
				logger.Error(err, "Cannot read the cluster's files, trying again", "path", f.path)
			}
			unavailable = err.Error()
		} else {
			unavailable = ""
			for _, err := range malformed {
				logger.Error(err.Err, "Skipped a malformed document; no object of its file is treated as deleted",
					"position", err.Position.String())
			}
			if len(changes) > 0 {
				h.Update(changes...)
			}
			if !synced {
				synced = true
				h.Synced()
			}
		}
		if !follow.wait(ctx, state.due) {
			return nil
		}
	}
}
