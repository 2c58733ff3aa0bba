package network

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// ServerAt returns the address and port of a host's first server.
func (h Host) ServerAt(f model.Family) netip.AddrPort {
	return netip.AddrPortFrom(h.Addr(f), ServerPort)
}

// Answer is a server's answer: the address it listens on, and the client's address as it sees it.
type Answer struct {
	Server netip.AddrPort
	Client netip.AddrPort
	// echo is the text of the question, to match the answer to it.
	echo string
}

func (a Answer) encode() []byte {
	return fmt.Appendf(nil, "%v %v %s\n", a.Server, a.Client, a.echo)
}

func decodeAnswer(b []byte) (Answer, error) {
	fields := strings.Fields(string(b))
	if len(fields) != 3 {
		return Answer{}, fmt.Errorf("%q is not what a server of the test network says", b)
	}
	server, err1 := netip.ParseAddrPort(fields[0])
	from, err2 := netip.ParseAddrPort(fields[1])
	return Answer{Server: server, Client: from, echo: fields[2]}, errors.Join(err1, err2)
}

// servers are the servers of pods and nodes.
type servers struct {
	wg    sync.WaitGroup
	mu    sync.Mutex
	open  map[interface{ Close() error }]bool
	ended bool

	transfers transfers
}

// startServers starts a server for each host, protocol and port.
func startServers(n *Network) (*servers, error) {
	s := &servers{open: map[interface{ Close() error }]bool{}}
	for _, h := range Hosts() {
		if h.Name == Client || h.Name == Client2 {
			continue
		}
		for _, f := range n.families {
			for _, port := range ServerPorts() {
				for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
					if protocol == model.SCTP && n.sctp != kernelSCTP {
						continue
					}
					if _, err := s.serve(n.namespaceOf(h), protocol, netip.AddrPortFrom(h.Addr(f), port), false); err != nil {
						s.close()
						return nil, fmt.Errorf("%s: %w", h.Name, err)
					}
				}
			}
			if n.sctp == userSpaceSCTP {
				if err := s.serveUserSpaceSCTP(n.namespaceOf(h), h.Addr(f)); err != nil {
					s.close()
					return nil, fmt.Errorf("%s: %w", h.Name, err)
				}
			}
		}
	}
	return s, nil
}

// Serve starts a server of a host on one address, until stop is called or the network is closed.
func (n *Network) Serve(name string, protocol model.Protocol, at netip.AddrPort) (stop func(), err error) {
	return n.servers.serve(n.namespaceOf(HostNamed(name)), protocol, at, false)
}

// close stops all servers and closes their connections.
func (s *servers) close() {
	s.mu.Lock()
	s.ended = true
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// keep registers c to be closed with the servers. If they are closed already, it closes c and returns false.
func (s *servers) keep(c interface{ Close() error }) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = c.Close()
		return false
	}
	s.open[c] = true
	return true
}

func (s *servers) drop(c interface{ Close() error }) {
	_ = c.Close()
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
}

// serve starts a server. It answers that its address is at or, with many, the address that the client connected to,
// which only stream servers know. It runs until stop or close.
func (s *servers) serve(ns *namespace, protocol model.Protocol, at netip.AddrPort, many bool) (stop func(), err error) {
	file, err := listen(ns, protocol, at)
	if err != nil {
		return nil, fmt.Errorf("listen on %v/%v: %w", at, protocol, err)
	}
	defer func() { _ = file.Close() }() // The net package duplicates the descriptor.
	if protocol == model.UDP {
		conn, err := net.FilePacketConn(file)
		if err != nil {
			return nil, err
		}
		s.keep(conn)
		s.wg.Go(func() { serveDatagrams(conn.(*net.UDPConn), at) })
		return func() { s.drop(conn) }, nil
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	s.keep(listener)
	s.wg.Go(func() { s.acceptStreams(listener, at, many) })
	return func() { s.drop(listener) }, nil
}

// listen opens a listening socket in a namespace.
func listen(ns *namespace, protocol model.Protocol, at netip.AddrPort) (*os.File, error) {
	family := unix.AF_INET
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := ns.socket(family, kindOf(protocol), int(protocol))
	if err != nil {
		return nil, err
	}
	if protocol != model.UDP {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil && at.Addr() == netip.IPv6Unspecified() {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(at))
	}
	if err == nil && protocol != model.UDP {
		err = unix.Listen(fd, 1024)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "server "+at.String()), nil
}

// maxDatagram is larger than any datagram of the tests.
const maxDatagram = 65536

// serveDatagrams answers each datagram until the socket is closed.
func serveDatagrams(conn *net.UDPConn, at netip.AddrPort) {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error from an earlier answer
		}
		_, _ = conn.WriteToUDPAddrPort(Answer{at, from, strings.TrimSpace(string(buf[:n]))}.encode(), from)
	}
}

// acceptStreams serves each connection until the listener is closed.
func (s *servers) acceptStreams(listener net.Listener, at netip.AddrPort, many bool) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client is gone already
		}
		if !s.keep(conn) {
			return
		}
		s.wg.Go(func() {
			defer s.drop(conn)
			from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
			if err != nil {
				return
			}
			at := at
			if many {
				if at, err = netip.ParseAddrPort(conn.LocalAddr().String()); err != nil {
					return
				}
			}
			for r := bufio.NewReader(conn); ; {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				line = strings.TrimSpace(line)
				if _, err := conn.Write(Answer{at, from, line}.encode()); err != nil {
					return
				}
				if t := s.transfers.begun(line); t != nil {
					t.serve(conn.(*net.TCPConn), r)
					return
				}
			}
		})
	}
}
