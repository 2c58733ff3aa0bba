package dataplane

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// command is a program to run.
type command struct {
	path  string
	args  []string
	write io.WriterTo           // its standard input, if any
	read  func(io.Reader) error // gets its standard output, if any
}

// run runs a program in a namespace, or in the calling thread's if ns is nil. It kills the program when ctx ends. The
// error has the start of stderr.
func run(ctx context.Context, ns *namespace, c command) (stderr string, err error) {
	name := filepath.Base(c.path)
	// Whenever this function returns, the program is killed.
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(runCtx, c.path, c.args...)
	var said bytes.Buffer
	// A process that it leaves behind may keep stderr open. On a starved machine to read that takes long, too.
	cmd.Stderr, cmd.WaitDelay = &said, time.Second
	var stdin io.WriteCloser
	var stdout io.Reader
	if c.write != nil {
		stdin, err = cmd.StdinPipe()
	}
	if c.read != nil && err == nil {
		stdout, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = ns.do(cmd.Start)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	var writing sync.WaitGroup
	if stdin != nil {
		writing.Go(func() {
			// If this fails, the program has exited and stderr says why.
			_, _ = c.write.WriteTo(stdin)
			_ = stdin.Close()
		})
	}
	var readErr error
	if stdout != nil {
		if readErr = c.read(stdout); readErr != nil {
			cancel()
		}
	}
	err = cmd.Wait()
	writing.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it has succeeded; only what it said is not known to be complete
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	if err = cmp.Or(readErr, err); err != nil {
		err = fmt.Errorf("%s: %w", name, explain(err, said.String()))
	}
	return said.String(), err
}
