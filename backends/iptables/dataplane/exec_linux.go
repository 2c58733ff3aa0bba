package dataplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// command is a program to run.
type command struct {
	path  string
	args  []string
	write io.WriterTo             // its standard input, if any
	read  func(line []byte) error // gets its standard output, if any
}

// run runs a program in a namespace to its end. It is killed when ctx ends. If it fails by itself the error is a
// *programError.
func run(ctx context.Context, ns *namespace, c command) error {
	name := filepath.Base(c.path)
	// Whatever ends this function ends the program.
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(runCtx, c.path, c.args...)
	var stderr bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &stderr, time.Second
	var stdin io.WriteCloser
	var stdout io.Reader
	var err error
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
		return fmt.Errorf("%s: %w", name, explain(err, err.Error()))
	}
	var writing sync.WaitGroup
	if stdin != nil {
		writing.Go(func() {
			// If this fails the program has ended, and says why.
			_, _ = c.write.WriteTo(stdin)
			_ = stdin.Close()
		})
	}
	var readErr error
	if stdout != nil {
		if readErr = readSave(stdout, c.read); readErr != nil {
			cancel()
		}
	}
	err = cmd.Wait()
	writing.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", name, context.Cause(ctx))
	case readErr != nil:
		return fmt.Errorf("%s: %w", name, readErr)
	case err != nil:
		return &programError{name: name, stderr: stderr.String(), err: explain(err, stderr.String())}
	}
	return nil
}

// programError is a program that failed by itself.
type programError struct {
	name   string
	stderr string
	err    error
}

func (e *programError) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("%s: %v: %s", e.name, e.err, tidy(e.stderr)), ": ")
}

func (e *programError) Unwrap() error { return e.err }
