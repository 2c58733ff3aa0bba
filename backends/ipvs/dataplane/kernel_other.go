//go:build !linux

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Kernel is the kernel of this machine. Systems other than Linux have no IPVS.
type Kernel struct{ absent }

// NewKernel returns an error that wraps [errors.ErrUnsupported]: IPVS is a part of Linux.
func NewKernel(context.Context, string) (*Kernel, error) {
	return nil, fmt.Errorf("IPVS on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// IsLoaded is false.
func IsLoaded() bool { return false }

// absent fails in every method.
type absent struct{}

func (absent) Servers(context.Context) ([]Server, error)       { return nil, errors.ErrUnsupported }
func (absent) AddServer(context.Context, Server) error         { return errors.ErrUnsupported }
func (absent) UpdateServer(context.Context, Server) error      { return errors.ErrUnsupported }
func (absent) DeleteServer(context.Context, ServerKey) error   { return errors.ErrUnsupported }
func (absent) SetTimeouts(context.Context, Timeouts) error     { return errors.ErrUnsupported }
func (absent) AddAddress(context.Context, netip.Addr) error    { return errors.ErrUnsupported }
func (absent) DeleteAddress(context.Context, netip.Addr) error { return errors.ErrUnsupported }
func (absent) DeleteLink(context.Context) error                { return errors.ErrUnsupported }
func (absent) Close() error                                    { return nil }

func (absent) Destinations(context.Context, ServerKey) ([]Destination, error) {
	return nil, errors.ErrUnsupported
}
func (absent) AddDestination(context.Context, ServerKey, Destination) error {
	return errors.ErrUnsupported
}
func (absent) UpdateDestination(context.Context, ServerKey, Destination) error {
	return errors.ErrUnsupported
}
func (absent) DeleteDestination(context.Context, ServerKey, netip.AddrPort) error {
	return errors.ErrUnsupported
}

func (absent) Addresses(context.Context, model.Family) ([]netip.Addr, error) {
	return nil, errors.ErrUnsupported
}

var _ Interface = (*Kernel)(nil)
