//go:build !linux

package dataplane

import (
	"context"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Kernel is the kernel of this machine. Systems other than Linux have no IPVS.
type Kernel struct{ absent }

// NewKernel returns ErrUnsupported.
func NewKernel(context.Context, string) (*Kernel, error) { return nil, ErrUnsupported }

// IsLoaded is false.
func IsLoaded() bool { return false }

// absent fails in every method.
type absent struct{}

func (absent) Servers(context.Context) ([]Server, error)       { return nil, ErrUnsupported }
func (absent) AddServer(context.Context, Server) error         { return ErrUnsupported }
func (absent) UpdateServer(context.Context, Server) error      { return ErrUnsupported }
func (absent) DeleteServer(context.Context, ServerKey) error   { return ErrUnsupported }
func (absent) SetTimeouts(context.Context, Timeouts) error     { return ErrUnsupported }
func (absent) AddAddress(context.Context, netip.Addr) error    { return ErrUnsupported }
func (absent) DeleteAddress(context.Context, netip.Addr) error { return ErrUnsupported }
func (absent) DeleteLink(context.Context) error                { return ErrUnsupported }
func (absent) Close() error                                    { return nil }

func (absent) Destinations(context.Context, ServerKey) ([]Destination, error) {
	return nil, ErrUnsupported
}
func (absent) AddDestination(context.Context, ServerKey, Destination) error    { return ErrUnsupported }
func (absent) UpdateDestination(context.Context, ServerKey, Destination) error { return ErrUnsupported }
func (absent) DeleteDestination(context.Context, ServerKey, netip.AddrPort) error {
	return ErrUnsupported
}

func (absent) Addresses(context.Context, model.Family) ([]netip.Addr, error) {
	return nil, ErrUnsupported
}

var _ Interface = (*Kernel)(nil)
