package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFolder keeps other judges from writing to a folder until it is released, or until the judge ends.
func lockFolder(folder string) (release func(), err error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("another judge writes to the folder %s", folder)
		}
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
