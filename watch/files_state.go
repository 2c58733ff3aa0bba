package watch

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"k8s.io/klog/v2"
)

// fileState is what has been delivered of some files. It holds names and hashes, no objects.
type fileState struct {
	decoder   decoder
	delivered map[key]delivered
}

// delivered tells of an object which text of which file it was made of.
type delivered struct {
	file string
	sum  sum
}

func newFileState(f filter, logger klog.Logger) *fileState {
	return &fileState{decoder: decoder{filter: f, logger: logger}, delivered: map[key]delivered{}}
}

// read reads the files and returns what has changed since the last time, deletions at the end, each sorted, and what is
// malformed. An error means that there is nothing to read at the location.
//
// While a file has something malformed, nobody knows what it would say: objects that have been delivered from it and
// that it now lacks stay as they are.
func (s *fileState) read(ctx context.Context, files location) ([]Change, []*DocumentError, error) {
	names, err := files.list()
	if err != nil {
		return nil, nil, err
	}
	s.decoder.next()
	split := splitter{decoder: &s.decoder}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		data, err := fs.ReadFile(files.fsys, name)
		switch {
		case err == nil:
			split.file(files.display(name), data)
		case files.single != "":
			return nil, nil, err
		case errors.Is(err, fs.ErrNotExist):
			// Deleted since it was listed.
		default:
			if path := (*fs.PathError)(nil); errors.As(err, &path) {
				err = path.Err
			}
			split.failed(&DocumentError{Position: Position{File: files.display(name)}, Err: err})
		}
	}
	return s.changes(split.found, split.errors), split.errors, nil
}

// changes returns the difference between what has been delivered and what was found, and takes it for delivered.
func (s *fileState) changes(all []found, malformed []*DocumentError) []Change {
	objects := make(map[key]found, len(all))
	for _, f := range all {
		if earlier, ok := objects[f.key]; ok {
			s.decoder.logger.Info("An object is there more than once, the last one is used", "object", f.key.String(),
				"unused", earlier.text.at.String(), "used", f.text.at.String())
		}
		objects[f.key] = f
	}
	broken := map[string]bool{}
	for _, err := range malformed {
		broken[err.File] = true
	}
	next := make(map[key]delivered, len(objects))
	var sets, deletions []Change
	for k, f := range objects {
		before, ok := s.delivered[k]
		if ok && broken[before.file] && f.text.at.File < before.file {
			// What counts is in the malformed file, and this is what it overrides.
			next[k] = before
			continue
		}
		next[k] = delivered{file: f.text.at.File, sum: f.sum}
		if before.sum == f.sum {
			continue
		}
		if f.object == nil { // it was decoded before, and another one was delivered
			obj, err := decode(f.text)
			if err != nil { // cannot be: the same text could be decoded
				s.decoder.logger.Error(f.text.fail(err), "Skipped an object")
				continue
			}
			f.object = obj
		}
		sets = append(sets, Change{Object: f.object})
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

func compareChanges(a, b Change) int {
	ak, _ := kindOf(a.Object)
	bk, _ := kindOf(b.Object)
	return cmp.Or(
		cmp.Compare(ak, bk),
		cmp.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()),
		cmp.Compare(a.Object.GetName(), b.Object.GetName()),
	)
}
