package brain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Listen opens a listener for a target: unix:///PATH, or host:port. A Unix socket has the mode, 0600 by default, from
// the moment at which it can be opened. It replaces a socket that an earlier process left behind; a socket that is in
// use, or a file that is not a socket, is an error.
func Listen(ctx context.Context, target string, mode fs.FileMode) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(target, "unix://")
	var config net.ListenConfig
	if !isUnix {
		return config.Listen(ctx, "tcp", target)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: another server already listens there", target)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s: exists and is not a socket", target)
	}
	if mode == 0 {
		mode = 0o600
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".") // nobody else can open files in it, whatever the umask
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(private) }()
	hidden := filepath.Join(private, "s") // short, because the length of a path is limited
	ln, err := config.Listen(ctx, "unix", hidden)
	if errors.Is(err, syscall.EINVAL) {
		return nil, fmt.Errorf("%s: the path is too long: that of a socket has about 100 bytes at most", target)
	}
	if err != nil {
		return nil, err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(hidden, mode)
	var own fs.FileInfo
	if err == nil {
		own, err = os.Lstat(hidden)
	}
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return &unixListener{ln, path, own}, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	net.Listener
	path string
	own  fs.FileInfo // of the socket
}

// Addr names the socket as clients know it.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close removes the socket first: while it accepts connections, no other process replaces it.
func (l *unixListener) Close() error {
	var removed error
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		removed = os.Remove(l.path)
	}
	return errors.Join(removed, l.Listener.Close())
}
