//go:build !linux

package nodeaddr

import (
	"context"
	"net"
	"net/netip"
	"slices"
)

// Addresses implements [Host].
func (s *System) Addresses() ([]HostAddress, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list []HostAddress
	for _, i := range interfaces {
		if slices.Contains(s.ExcludeInterfaces, i.Name) {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				list = append(list, HostAddress{Addr: p.Addr().Unmap().WithZone(""), Interface: i.Name})
			}
		}
	}
	return list, nil
}

// Watch implements [Host]. Changes are not noticed here.
func (s *System) Watch(ctx context.Context, changed func()) error {
	changed()
	<-ctx.Done()
	return nil
}
