//go:build !windows

package command

import (
	"context"
	"errors"
)

// runAsService returns an error: only Windows has services.
func runAsService(context.Context, func(context.Context) error) error {
	return errors.New("only Windows has Windows services")
}
