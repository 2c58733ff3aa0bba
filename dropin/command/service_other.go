//go:build !windows

package main

import (
	"context"
	"errors"
)

// runAsService is for Windows.
func runAsService(context.Context, func(context.Context) error) error {
	return errors.New("only Windows has Windows services")
}
