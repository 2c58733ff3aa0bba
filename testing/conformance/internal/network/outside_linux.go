package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// outsideRouter answers every packet that reaches the outside namespace with "network unreachable", like a router
// without a route. It does so in user space because the kernel sends at most one such error a second.
type outsideRouter struct {
	files []*os.File
	wg    sync.WaitGroup
}

// outsideAddr reports whether an ICMP error comes from the outside router: then the packet left the node unchanged.
func outsideAddr(a netip.Addr) bool {
	return a == routerAddr(model.IPv4) || a == routerAddr(model.IPv6)
}

func routerAddr(f model.Family) netip.Addr { return Nth(PlanOf(f).toOutside, 2) }

func startOutsideRouter(ns *namespace, families []model.Family) (*outsideRouter, error) {
	r := &outsideRouter{}
	for _, f := range families {
		if err := r.serve(ns, f); err != nil {
			r.close()
			return nil, fmt.Errorf("router outside, %v: %w", f, err)
		}
	}
	return r, nil
}

func (r *outsideRouter) close() {
	for _, f := range r.files {
		_ = f.Close()
	}
	r.wg.Wait()
}

func (r *outsideRouter) serve(ns *namespace, f model.Family) error {
	etherType, family, protocol := uint16(unix.ETH_P_IP), unix.AF_INET, unix.IPPROTO_ICMP
	if f == model.IPv6 {
		etherType, family, protocol = unix.ETH_P_IPV6, unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	in, err := r.socket(ns, unix.AF_PACKET, unix.SOCK_DGRAM, int(bigEndian(etherType)))
	if err != nil {
		return err
	}
	out, err := r.socket(ns, family, unix.SOCK_RAW, protocol)
	if err != nil {
		return err
	}
	receive, err := in.SyscallConn()
	if err != nil {
		return err
	}
	send, err := out.SyscallConn()
	if err != nil {
		return err
	}
	r.wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			var packet []byte
			closed := receive.Read(func(fd uintptr) bool {
				n, from, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				if err == unix.EAGAIN {
					return false
				}
				if link, ok := from.(*unix.SockaddrLinklayer); ok && err == nil && link.Pkttype == unix.PACKET_HOST {
					packet = buf[:n]
				}
				return true
			})
			if closed != nil {
				return
			}
			if source, icmp := unreachable(packet, f); icmp != nil {
				_ = send.Control(func(fd uintptr) {
					_ = unix.Sendto(int(fd), icmp, 0, sockaddr(netip.AddrPortFrom(source, 0)))
				})
			}
		}
	})
	return nil
}

// socket opens a socket in the namespace; close closes it.
func (r *outsideRouter) socket(ns *namespace, family, kind, protocol int) (*os.File, error) {
	fd, err := ns.socket(family, kind, protocol)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "router outside")
	r.files = append(r.files, f)
	return f, nil
}

// unreachable returns the ICMP error for a packet, or nil for ICMP errors and packets to the router itself.
func unreachable(packet []byte, f model.Family) (source netip.Addr, icmp []byte) {
	var to netip.Addr
	var protocol byte
	switch {
	case f == model.IPv4 && len(packet) >= 20:
		source, to = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
		protocol = packet[9]
		icmp = []byte{3, 0, 0, 0, 0, 0, 0, 0}
	case f == model.IPv6 && len(packet) >= 40:
		source, to = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
		protocol = packet[6]
		icmp = []byte{1, 0, 0, 0, 0, 0, 0, 0}
	default:
		return netip.Addr{}, nil
	}
	if protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6 || to == routerAddr(f) {
		return netip.Addr{}, nil
	}
	icmp = append(icmp, packet[:min(len(packet), 128)]...)
	if f == model.IPv4 {
		// For IPv6 the kernel computes the checksum.
		binary.BigEndian.PutUint16(icmp[2:], internetChecksum(icmp))
	}
	return source, icmp
}

// internetChecksum is the checksum of RFC 1071.
func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// bigEndian converts to network byte order, like htons.
func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
