//go:build !windows

package command

import (
	"context"
	"errors"
)

// runAsService is for Windows.
func runAsService(context.Context, func(context.Context) error) error {
	return errors.New("only Windows has Windows services")
}
