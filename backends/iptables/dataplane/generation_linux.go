package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// generation asks the kernel whether rules were changed. Its socket stays in the namespace in which it was opened.
type generation struct {
	mu    sync.Mutex
	nft   *nfnetlink.Conn // NFT
	raw   int             // Legacy: a socket, 0 if there is none
	level int             // Legacy: of its options
}

func (g *generation) open(f model.Family, v Variant) (err error) {
	if v == NFT {
		if g.nft, err = nfnetlink.Dial(nfnetlink.Config{}); err != nil {
			return fmt.Errorf("nf_tables: %w", err)
		}
		return probeNAT(g.nft, nfnetlink.Proto(f))
	}
	domain := unix.AF_INET
	if g.level = unix.IPPROTO_IP; f == model.IPv6 {
		domain, g.level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	if g.raw, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
		return fmt.Errorf("a socket to ask x_tables: %w", err)
	}
	return nil
}

func (g *generation) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.nft != nil {
		return g.nft.Close()
	}
	if g.raw != 0 {
		err := unix.Close(g.raw)
		g.raw = 0
		return err
	}
	return nil
}

func (g *generation) get() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.nft != nil:
		generation, err := g.nft.Generation()
		return uint64(generation), err
	case g.raw != 0:
		return g.getLegacy()
	}
	return 0, errors.New("closed")
}

// getinfo is struct ipt_getinfo, and ip6t_getinfo.
type getinfo struct {
	name       [32]byte
	hooks      uint32
	entries    [5]uint32
	underflows [5]uint32
	rules      uint32
	size       uint32
}

// getLegacy hashes what the kernel says about the size of the tables and where in them the built-in chains begin. The
// kernel has no counter of changes. Asking for a table makes the kernel load it.
func (g *generation) getLegacy() (uint64, error) {
	const getInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	hash := fnv.New64a()
	for _, t := range []Table{NAT, Filter} {
		var info getinfo
		copy(info.name[:len(info.name)-1], t)
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(g.raw), uintptr(g.level), getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == unix.ENOENT {
			return 0, fmt.Errorf("table %s: %w", t, ErrNoTable)
		}
		if errno != 0 {
			return 0, fmt.Errorf("table %s: %w", t, errno)
		}
		_ = binary.Write(hash, binary.NativeEndian,
			[][5]uint32{info.entries, info.underflows, {info.hooks, info.rules, info.size}})
	}
	return hash.Sum64(), nil
}
