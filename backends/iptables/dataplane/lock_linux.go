package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// xtablesLock is the file that iptables-legacy's programs lock. iptables-restore does so itself since 1.6.2.
const xtablesLock = "/run/xtables.lock"

// lockXtables waits for the lock, and returns how to give it back.
func lockXtables(ctx context.Context, file string, seconds int) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the xtables lock: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(seconds)*time.Second,
		fmt.Errorf("%w for %d seconds", ErrLocked, seconds))
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		_ = f.Close()
		return nil, err
	}
}
