package watch

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"k8s.io/klog/v2"
)

// fileState records what has been delivered from files. It holds names and hashes, no objects.
type fileState struct {
	parser    parser
	delivered map[key]delivered
	empty     map[string]bool // the files that objects came from and that have none now
}

// delivered records the file and the text that an object was read from.
type delivered struct {
	file string
	sum  sum
}

func newFileState(nodeName string, logger klog.Logger) *fileState {
	return &fileState{parser: parser{nodeName: nodeName, logger: logger}, delivered: map[key]delivered{}}
}

// read reads the files and returns the changes since the last time, each kind sorted and deletions last, and the
// malformed documents. An error means that there is nothing to read at the location.
//
// While a part of a file is malformed, its content is not known: objects that were delivered from it and that it now
// seems to lack stay as they are. The same is true of a file that has become empty.
func (s *fileState) read(ctx context.Context, files location) ([]Change, []*documentError, error) {
	names, err := files.list()
	if err != nil {
		return nil, nil, err
	}
	p := &s.parser
	p.begin()
	defer func() { p.found = nil }() // it holds objects
	for _, name := range names {
		data, err := fs.ReadFile(files.fsys, name)
		switch {
		case err == nil:
			p.file(ctx, files.display(name), data)
		case files.single != "":
			return nil, nil, err
		case errors.Is(err, fs.ErrNotExist):
			// Deleted since it was listed.
		default:
			if path := (*fs.PathError)(nil); errors.As(err, &path) {
				err = path.Err
			}
			p.fail(position{file: files.display(name)}, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
	}
	return s.changes(), p.malformed, nil
}

// changes returns the difference between what has been delivered and what was found, and marks it as delivered.
func (s *fileState) changes() []Change {
	objects := make(map[key]found, len(s.parser.found))
	for _, f := range s.parser.found {
		if earlier, ok := objects[f.key]; ok {
			s.parser.logger.Info("An object is defined more than once; using the last definition",
				"object", f.key.String(),
				"unused", earlier.position().String(), "used", f.position().String())
		}
		objects[f.key] = f
	}
	broken := s.emptied()
	for _, err := range s.parser.malformed {
		broken[err.file] = true
	}
	next := make(map[key]delivered, len(objects))
	var sets, deletions []Change
	for k, f := range objects {
		before, ok := s.delivered[k]
		if ok && broken[before.file] && f.file < before.file {
			// The definition that counts is in the malformed file, and overrides this one.
			next[k] = before
			continue
		}
		next[k] = delivered{file: f.file, sum: f.sum}
		if before.sum == f.sum {
			continue
		}
		object, err := s.parser.decode(f)
		if err != nil { // cannot happen: the same text was decoded before
			s.parser.logger.Error(err, "Skipped an object", "position", f.position().String())
			continue
		}
		sets = append(sets, Change{Object: object})
	}
	for k, before := range s.delivered {
		if _, ok := next[k]; ok {
			continue
		}
		if broken[before.file] {
			next[k] = before
			continue
		}
		deletions = append(deletions, k.deleted())
	}
	s.delivered = next
	slices.SortFunc(sets, compareChanges)
	slices.SortFunc(deletions, compareChanges)
	return append(sets, deletions...)
}

// emptied returns the files that have become empty and whose objects stay nevertheless: a file without a document, or
// all of them if there is no document left at all. A shell's "command > file" empties the file first, and leaves it
// empty if the command fails.
func (s *fileState) emptied() map[string]bool {
	nothing := true
	for _, n := range s.parser.documents {
		nothing = nothing && n == 0
	}
	for _, err := range s.parser.malformed {
		nothing = nothing && err.document > 0 // a file that cannot be read
	}
	empty := map[string]bool{}
	for _, d := range s.delivered {
		n, exists := s.parser.documents[d.file]
		if empty[d.file] || n > 0 || !exists && !nothing {
			continue
		}
		if empty[d.file] = true; !s.empty[d.file] {
			s.parser.logger.Info("A file that had objects is empty or gone; keeping its objects for now", "file", d.file)
		}
	}
	s.empty = empty
	return maps.Clone(empty)
}

func compareChanges(a, b Change) int {
	ak, _ := kindOf(a.Object)
	bk, _ := kindOf(b.Object)
	return cmp.Or(
		cmp.Compare(ak, bk),
		cmp.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()),
		cmp.Compare(a.Object.GetName(), b.Object.GetName()),
	)
}
