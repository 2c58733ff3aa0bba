package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Some kernels without SCTP sockets support SCTP in connection tracking and NAT. There the suite exchanges the first
// two messages of the handshake over raw sockets: the client's INIT and the server's INIT ACK, whose cookie carries the
// answer.

// sctpMode selects how the test network speaks SCTP.
type sctpMode int

const (
	kernelSCTP    sctpMode = iota + 1 // the kernel's sockets
	userSpaceSCTP                     // raw sockets
)

// probeSCTP determines which way works.
func probeSCTP() (sctpMode, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		return kernelSCTP, unix.Close(fd)
	}
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		return userSpaceSCTP, nil
	}
	return 0, os.NewSyscallError("socket", err)
}

// repeatSoon makes a kernel SCTP socket repeat its INIT after 0.2 s instead of 3 s. Unlike TCP, SCTP ignores an ICMP
// error that arrives while connect holds the socket; it notices the next one.
func repeatSoon(fd int) {
	const rtoInfo = 0 // SCTP_RTOINFO
	info := binary.NativeEndian.AppendUint32(nil, 0)
	for _, milliseconds := range []uint32{200, 1000, 200} { // initial, maximum, minimum
		info = binary.NativeEndian.AppendUint32(info, milliseconds)
	}
	_ = unix.SetsockoptString(fd, unix.IPPROTO_SCTP, rtoInfo, string(info))
}

const (
	sctpInit        = 1
	sctpInitAck     = 2
	sctpStateCookie = 7
	sctpHeaderSize  = 12 // ports, verification tag, checksum
	sctpChunkHeader = 4
	sctpInitSize    = 16 // initiate tag, window, streams out and in, first TSN
)

// sctpPacket is an INIT, or an INIT ACK with a cookie.
type sctpPacket struct {
	from, to uint16
	chunk    byte
	// tag is the verification tag: 0 for an INIT, otherwise the one that the peer chose.
	tag uint32
	// own is the sender's tag.
	own    uint32
	cookie []byte
}

func (p sctpPacket) encode() []byte {
	b := make([]byte, sctpHeaderSize, 128)
	binary.BigEndian.PutUint16(b[0:], p.from)
	binary.BigEndian.PutUint16(b[2:], p.to)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	length := sctpChunkHeader + sctpInitSize
	if p.cookie != nil {
		length += 4 + len(p.cookie)
	}
	b = append(b, p.chunk, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = binary.BigEndian.AppendUint32(b, p.own)
	b = binary.BigEndian.AppendUint32(b, 65536)
	b = binary.BigEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint32(b, 1)
	if p.cookie != nil {
		b = binary.BigEndian.AppendUint16(b, sctpStateCookie)
		b = binary.BigEndian.AppendUint16(b, uint16(4+len(p.cookie)))
		b = append(b, p.cookie...)
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// decodeSCTP parses the output of encode, and returns false for anything else.
func decodeSCTP(b []byte) (p sctpPacket, ok bool) {
	if len(b) < sctpHeaderSize+sctpChunkHeader+sctpInitSize {
		return p, false
	}
	p.from, p.to = binary.BigEndian.Uint16(b[0:]), binary.BigEndian.Uint16(b[2:])
	p.tag = binary.BigEndian.Uint32(b[4:])
	chunk := b[sctpHeaderSize:]
	p.chunk = chunk[0]
	p.own = binary.BigEndian.Uint32(chunk[sctpChunkHeader:])
	if params := chunk[sctpChunkHeader+sctpInitSize:]; len(params) >= 4 &&
		binary.BigEndian.Uint16(params) == sctpStateCookie {
		n := int(binary.BigEndian.Uint16(params[2:]))
		if n < 4 || n > len(params) {
			return p, false
		}
		p.cookie = params[4:n]
	}
	return p, p.chunk == sctpInit || p.chunk == sctpInitAck
}

// skipIPHeader removes the IP header, which only raw IPv4 sockets deliver.
func skipIPHeader(b []byte, f model.Family) []byte {
	if f == model.IPv6 || len(b) == 0 {
		return b
	}
	if n := int(b[0]&0x0f) * 4; n <= len(b) {
		return b[n:]
	}
	return nil
}

// serveUserSpaceSCTP answers every INIT to an address, on the ports of the servers.
func (s *servers) serveUserSpaceSCTP(ns *namespace, at netip.Addr) error {
	sock, err := newSocket(ns, unix.SOCK_RAW, unix.IPPROTO_SCTP, netip.AddrPortFrom(at, 0))
	if err != nil {
		return fmt.Errorf("raw SCTP socket on %v: %w", at, err)
	}
	s.keep(sock.file)
	s.wg.Go(func() {
		buf := make([]byte, 512)
		for {
			var n int
			var from unix.Sockaddr
			closed := sock.raw.Read(func(fd uintptr) bool {
				for {
					var err error
					n, from, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
					switch err {
					case nil:
						return true
					case unix.EAGAIN:
						return false
					}
					_ = sock.pendingError(int(fd)) // of an earlier answer
				}
			})
			if closed != nil {
				return
			}
			p, ok := decodeSCTP(skipIPHeader(buf[:n], model.FamilyOf(at)))
			if !ok || p.chunk != sctpInit || !slices.Contains(ServerPorts(), p.to) {
				continue
			}
			cookie := Answer{netip.AddrPortFrom(at, p.to), netip.AddrPortFrom(addrOf(from), p.from),
				fmt.Sprint(p.own)}.encode()
			reply := sctpPacket{from: p.to, to: p.from, chunk: sctpInitAck, tag: p.own, own: 1, cookie: cookie}.encode()
			_ = sock.raw.Control(func(fd uintptr) { _ = unix.Sendto(int(fd), reply, 0, from) })
		}
	})
	return nil
}

func addrOf(a unix.Sockaddr) netip.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}

// sentFrom returns a function that reports whether an SCTP packet has this source port.
func sentFrom(port uint16) func(packet []byte) bool {
	return func(packet []byte) bool { return len(packet) >= 2 && binary.BigEndian.Uint16(packet) == port }
}

// askUserSpaceSCTP sends an INIT on a connected raw socket and waits for the INIT ACK.
func askUserSpaceSCTP(sock *socket, from uint16, to netip.AddrPort, tag uint32, deadline time.Time) (Answer, error) {
	init := sctpPacket{from: from, to: to.Port(), chunk: sctpInit, own: tag}
	if err := sock.send(init.encode()); err != nil && !IsErrno(err, unix.EPERM) {
		return Answer{}, err
	}
	buf := make([]byte, 512)
	for {
		n, err := sock.receive(buf, deadline)
		if err != nil {
			return Answer{}, err
		}
		p, ok := decodeSCTP(skipIPHeader(buf[:n], model.FamilyOf(to.Addr())))
		if ok && p.chunk == sctpInitAck && p.tag == tag && p.from == to.Port() && p.to == from {
			return decodeAnswer(p.cookie)
		}
	}
}
