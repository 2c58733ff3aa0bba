package nft

import (
	"context"
	"encoding/binary"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Chains of type nat see the first packet of each connection, so the elements that say where packets to a service go
// count connections. An element that is replaced, because its service has another number of endpoints, begins at 0.

// count reads the counters of the family's elements.
func (f *family) count(ctx context.Context) (func(*frontend.Changes, lifecycle.Traffic), error) {
	sets := newSets(true)
	counters, err := f.dataplane.Counters(ctx, f.key, sets[serviceIPs])
	if err != nil {
		return nil, err
	}
	ports, err := f.dataplane.Counters(ctx, f.key, sets[nodePorts])
	if err != nil {
		return nil, err
	}
	return func(c *frontend.Changes, traffic lifecycle.Traffic) {
		for _, list := range []map[string]uint64{counters, ports} {
			for key, n := range list {
				k, ok := frontendKey(key)
				if owner := c.Owner(k); ok && owner != nil {
					traffic.Add(owner.Name().Service, sink.Traffic{Connections: n})
				}
			}
		}
	}, nil
}

// frontendKey is the reverse of rules.Key. It returns false if another program has made the key.
func frontendKey(key string) (k frontend.Key, ok bool) {
	at := len(key) - 8 // of protocol and port, which are padded
	if at < 0 {
		return k, false
	}
	if k.Addr, ok = netip.AddrFromSlice([]byte(key[:at])); !ok && at > 0 {
		return k, false
	}
	k.Protocol, k.Port = model.Protocol(key[at]), binary.BigEndian.Uint16([]byte(key[at+4:]))
	return k, true
}
