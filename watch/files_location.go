package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// location is where files are: a directory, or one file of it.
type location struct {
	fsys   fs.FS
	dir    string // prefix of displayed names, "" for an fs.FS
	single string // the one file; "" for all files of the directory
}

// locate finds out whether the path is a file or a directory.
func locate(at string) (location, error) {
	info, err := os.Stat(at)
	if err != nil {
		return location{}, err
	}
	switch {
	case info.IsDir():
		return location{fsys: os.DirFS(at), dir: at}, nil
	case info.Mode().IsRegular():
		dir, file := filepath.Split(at)
		if dir == "" {
			dir = "."
		}
		return location{fsys: os.DirFS(dir), dir: filepath.Dir(at), single: file}, nil
	}
	return location{}, fmt.Errorf("%s: neither a regular file nor a directory", at)
}

// display returns the name of a file for messages.
func (l location) display(name string) string {
	if l.dir == "" || l.dir == "." {
		return name
	}
	return filepath.Join(l.dir, name)
}

// list returns the names of the files to read, sorted.
func (l location) list() ([]string, error) {
	if l.single != "" {
		return []string{l.single}, nil
	}
	entries, err := fs.ReadDir(l.fsys, ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if isClusterFile(entry.Name()) && l.isFile(entry) {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// isFile reports whether the entry is a file, or a symbolic link to one. A broken link is not a file. An entry that
// cannot be examined counts as one, and reading it will return the reason.
func (l location) isFile(entry fs.DirEntry) bool {
	if entry.Type()&fs.ModeSymlink == 0 {
		return entry.Type().IsRegular()
	}
	info, err := fs.Stat(l.fsys, entry.Name())
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return info.Mode().IsRegular()
}

// isClusterFile reports whether a directory's file of that name is read: editors' and other hidden files are not.
func isClusterFile(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// fingerprint changes when a file is added, removed or written, as far as names, sizes and times show it.
func (l location) fingerprint() string {
	names, err := l.list()
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, name := range names {
		info, err := fs.Stat(l.fsys, name)
		if err != nil {
			fmt.Fprintf(&b, "%s %v\n", name, err)
			continue
		}
		fmt.Fprintf(&b, "%s %d %d %v\n", name, info.Size(), info.ModTime().UnixNano(), info.Mode())
	}
	return b.String()
}
