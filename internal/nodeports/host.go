package nodeports

import (
	"context"
	"net/netip"
)

// HostAddress is an address of the host.
type HostAddress struct {
	// Addr is one address. Its zone is ignored, and an IPv4 address may be in IPv6-mapped form.
	Addr netip.Addr
	// Interface is the name of its network interface.
	Interface string
}

// Host is the source of the host's addresses.
type Host interface {
	// Addresses returns the addresses that the host has now.
	Addresses() ([]HostAddress, error)
	// Watch calls changed once as soon as later changes will be noticed, and then after every change; several changes
	// may be combined. It returns nil when ctx ends, and an error if it cannot go on.
	Watch(ctx context.Context, changed func()) error
}
