//go:build !linux

package hostaddr

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Addresses implements [nodeaddr.Host].
func (s *System) Addresses() ([]nodeaddr.HostAddress, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list []nodeaddr.HostAddress
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
				list = append(list, nodeaddr.HostAddress{Addr: p.Addr().Unmap().WithZone(""), Interface: i.Name})
			}
		}
	}
	return list, nil
}

// Watch implements [nodeaddr.Host]. It reports no changes.
func (s *System) Watch(ctx context.Context, changed func()) error {
	changed()
	<-ctx.Done()
	return nil
}
