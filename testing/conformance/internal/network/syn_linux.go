package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// SYNs determines which pods of [ManyPods] a service selects, from first packets alone: it sends SYNs from a pod and
// watches where they arrive. The pod resets each connection before a server sees it. This costs a fraction of complete
// connections. It sees nothing if the proxy itself accepts connections, as in user space.
type SYNs struct {
	out, in *os.File
	outFD   int
	inFD    int
	from    netip.Addr
	next    map[netip.AddrPort]uint16 // source ports
	buffer  [128]byte
}

// WatchSYNs starts to watch for SYNs from the named host. ServeManyPods must be called before.
func (n *Network) WatchSYNs(from string, f model.Family) (*SYNs, error) {
	host := HostNamed(from)
	s := &SYNs{from: host.Addr(f), next: map[netip.AddrPort]uint16{}}
	family, protocol, filter := unix.AF_INET, unix.ETH_P_IP, synFilter4()
	if f == model.IPv6 {
		family, protocol, filter = unix.AF_INET6, unix.ETH_P_IPV6, synFilter6()
	}
	var err error
	if s.outFD, err = n.namespaceOf(host).socket(family, unix.SOCK_RAW, unix.IPPROTO_TCP); err != nil {
		return nil, err
	}
	s.out = os.NewFile(uintptr(s.outFD), "SYNs from "+from)
	// The kernel would give this socket a copy of each packet to the pod.
	if err := attach(s.outFD, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}); err != nil {
		s.Close()
		return nil, err
	}
	if s.inFD, err = n.namespaces[OtherNode].socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0); err != nil {
		s.Close()
		return nil, err
	}
	s.in = os.NewFile(uintptr(s.inFD), "SYNs to pods")
	_ = unix.SetsockoptInt(s.inFD, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) // not permitted in a user namespace
	err = attach(s.inFD, filter)
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(s.inFD, &unix.SockaddrLinklayer{Protocol: bigEndian(uint16(protocol))}))
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close stops watching.
func (s *SYNs) Close() {
	for _, f := range []*os.File{s.out, s.in} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Send sends one SYN. It uses each source port once per address, then starts again.
func (s *SYNs) Send(to netip.AddrPort) error {
	port := max(s.next[to], 1024)
	for port >= FirstReservedPort && port < EndOfReservedPorts {
		port = EndOfReservedPorts
	}
	s.next[to] = port + 1 // 0 after the last port
	err := unix.Sendto(s.outFD, s.segment(port, to), 0, sockaddr(netip.AddrPortFrom(to.Addr(), 0)))
	// As for any client, packet filters may reject it and queues may be full.
	if err != nil && err != unix.EPERM && err != unix.ENOBUFS && err != unix.EAGAIN {
		return fmt.Errorf("send a SYN to %v: %w", to, err)
	}
	return nil
}

// segment returns a SYN without options.
func (s *SYNs) segment(from uint16, to netip.AddrPort) []byte {
	const size = 20
	b := binary.BigEndian.AppendUint16(make([]byte, 0, size), from)
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint32(b, 1) // sequence number
	b = binary.BigEndian.AppendUint32(b, 0)
	b = append(b, size/4<<4, 0x02, 0xff, 0xff, 0, 0, 0, 0) // SYN, window, checksum, no urgent data
	pseudo := append(s.from.AsSlice(), to.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, size)
	binary.BigEndian.PutUint16(b[16:], internetChecksum(append(pseudo, b...)))
	return b
}

// Arrived returns, in order, the pods that SYNs have reached since the last call.
func (s *SYNs) Arrived() (pods []netip.Addr, err error) {
	for {
		n, _, err := unix.Recvfrom(s.inFD, s.buffer[:], unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN:
			return pods, nil
		case err == unix.EINTR:
		case err != nil:
			return pods, os.NewSyscallError("recvfrom", err)
		case n >= 40 && s.buffer[0]>>4 == 6:
			pods = append(pods, netip.AddrFrom16([16]byte(s.buffer[24:40])))
		case n >= 20:
			pods = append(pods, netip.AddrFrom4([4]byte(s.buffer[16:20])))
		}
	}
}

// synFilter4 accepts SYNs to [ManyPodsPort] over IPv4; synFilter6 those over IPv6 without extension headers.
func synFilter4() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 7, K: unix.IPPROTO_TCP},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 4, K: ManyPodsPort},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: 0x02},
		{Code: unix.BPF_RET | unix.BPF_K, K: 64},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

func synFilter6() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 6},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 6, K: unix.IPPROTO_TCP},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 42},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 4, K: ManyPodsPort},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 53},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: 0x02},
		{Code: unix.BPF_RET | unix.BPF_K, K: 64},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// attach attaches a filter for incoming packets to a socket.
func attach(fd int, filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
}
