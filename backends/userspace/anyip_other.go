//go:build !linux

package userspace

import (
	"context"
	"errors"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// AnyIP makes service addresses the node's own by routes of type local. Only Linux has them.
type AnyIP struct{}

// NewAnyIP returns an error: local routes need Linux.
func NewAnyIP(...netip.Prefix) (*AnyIP, error) {
	return nil, errors.New("userspace: local routes need Linux")
}

// Close does nothing.
func (a *AnyIP) Close() {}

// ListenOn implements [Addresses].
func (a *AnyIP) ListenOn(fr frontend.Frontend) []netip.AddrPort { return own(fr) }

// Update implements [Addresses].
func (a *AnyIP) Update(context.Context, model.Family, bool, []netip.Addr, []netip.Addr) error {
	return errors.New("local routes need Linux")
}
