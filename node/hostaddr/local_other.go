//go:build !linux

package hostaddr

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Addresses implements [nodeaddr.Host].
func (*Local) Addresses() ([]nodeaddr.HostAddress, error) { return (&System{}).Addresses() }

// Watch implements [nodeaddr.Host]. It reports no changes.
func (*Local) Watch(ctx context.Context, changed func()) error {
	return (&System{}).Watch(ctx, changed)
}
