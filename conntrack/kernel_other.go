//go:build !linux

package conntrack

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// DeleteUDP implements [Table]. It returns an error that wraps [errors.ErrUnsupported], because only Linux has such a
// table.
func (k *Kernel) DeleteUDP(context.Context, model.Family, []Selection, func(Flow) bool) (deleted int, err error) {
	return 0, fmt.Errorf("conntrack: %w", errors.ErrUnsupported)
}
