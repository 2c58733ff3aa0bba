package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// untilEnded returns a context that ends with a signal, and writers that end it when their output is closed: then a
// real cluster's objects can still be removed.
func untilEnded(out, usage io.Writer) (ctx context.Context, cancel func(), o, u io.Writer) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	// A SIGPIPE does not say which descriptor it is about. It may be a connection of the suite that the other side has
	// reset. The signal is received, not ignored, because child processes would inherit an ignored one.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	ctx, end := context.WithCancelCause(ctx)
	return ctx, func() {
		stop()
		end(nil)
		signal.Stop(pipes)
	}, &readWriter{out, end}, &readWriter{usage, end}
}

// readWriter is a writer that ends the context when the reader of its output has gone.
type readWriter struct {
	io.Writer
	end context.CancelCauseFunc
}

func (w *readWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err != nil {
		w.end(fmt.Errorf("nobody reads the output: %w", err))
	}
	return n, err
}
