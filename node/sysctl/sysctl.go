package sysctl

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Root is the directory that contains proc and sys. "" is "/".
//
// Parameters below net belong to the calling thread's network namespace. Their names are those of their files below
// proc/sys, for example "net/ipv4/conf/eth0.1/route_localnet": with slashes, because interface names may contain dots.
type Root string

// Error says that a parameter does not have the wanted value.
type Error struct {
	// Name is the name of the parameter.
	Name string
	// Want is the wanted value, and Got the actual one, "" if it cannot be read.
	Want, Got string
	// Err is the system's error: fs.ErrNotExist if there is no such parameter, perhaps because a module is not loaded;
	// fs.ErrPermission, or syscall.EROFS on Linux, if it is read-only. It is nil if the system accepted the value but
	// changed it.
	Err error
}

// Error returns the parameter, its value, the wanted value, and the cause.
func (e *Error) Error() string {
	got := "has no value"
	if e.Got != "" {
		got = "is " + e.Got
	}
	err := "the kernel did not take the value"
	if e.Err != nil {
		err = e.Err.Error()
	}
	return fmt.Sprintf("sysctl %s %s and cannot be set to %s: %s", e.Name, got, e.Want, err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Get returns the value of a parameter, without surrounding white space.
func (r Root) Get(name string) (string, error) {
	path, err := r.sysctl(name)
	if err != nil {
		return "", err
	}
	value, err := read(path)
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", name, err)
	}
	return value, nil
}

// SetInt sets a parameter unless it already has the value, and reports whether it changed. The error is an [*Error].
func (r Root) SetInt(name string, value int) (changed bool, err error) {
	want := strconv.Itoa(value)
	path, err := r.sysctl(name)
	if err != nil {
		return false, &Error{Name: name, Want: want, Err: err}
	}
	return set(name, path, want, func(got string) bool { return got == want })
}

// sysctl returns the path of a parameter's file.
func (r Root) sysctl(name string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", fmt.Errorf("%q is not the name of a parameter", name)
	}
	return r.path("proc/sys/" + name), nil
}

func (r Root) path(name string) string {
	return filepath.Join(cmp.Or(string(r), "/"), filepath.FromSlash(name))
}

func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

// set writes a value to a file unless the current value is good, and reads it back.
func set(name, path, value string, good func(got string) bool) (changed bool, err error) {
	got, err := read(path)
	if err != nil {
		return false, &Error{Name: name, Want: value, Err: err}
	}
	if good(got) {
		return false, nil
	}
	if err := write(path, value); err != nil {
		return false, &Error{Name: name, Want: value, Got: got, Err: err}
	}
	got, err = read(path)
	if err != nil || !good(got) {
		return true, &Error{Name: name, Want: value, Got: got, Err: err}
	}
	return true, nil
}

// write writes to an existing file like sysctl(8): with one write call, and a newline.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	return errors.Join(err, f.Close())
}
