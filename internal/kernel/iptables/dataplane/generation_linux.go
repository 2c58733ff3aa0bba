package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// generation asks the kernel whether rules have changed. Its socket belongs to the namespace in which it was opened.
type generation struct {
	get   func() (uint64, error)
	yield func() time.Duration
	close func() error
}

func openGeneration(f model.Family, v Variant) (*generation, error) {
	if v == NFT {
		conn, err := nfnetlink.Dial(nfnetlink.Config{})
		if err != nil {
			return nil, fmt.Errorf("nf_tables: %w", err)
		}
		if err := probeNAT(conn, nfnetlink.Proto(f)); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		readers := nfnetlink.OpenReaders()
		return &generation{get: func() (uint64, error) {
			generation, err := conn.Generation()
			return uint64(generation), err
		}, yield: func() time.Duration { return readers.Wait(time.Now()) },
			close: func() error { return errors.Join(readers.Close(), conn.Close()) }}, nil
	}
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if f == model.IPv6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open a socket for x_tables: %w", err)
	}
	raw := os.NewFile(uintptr(fd), "x_tables")
	return &generation{get: func() (uint64, error) { return legacyGeneration(raw.Fd(), level) },
		yield: func() time.Duration { return 0 }, close: raw.Close}, nil
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

// legacyGeneration hashes the tables' sizes and the offsets of their built-in chains, because the kernel has no counter
// of changes. Querying a table makes the kernel load it.
func legacyGeneration(socket uintptr, level int) (uint64, error) {
	const getInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	hash := fnv.New64a()
	for _, t := range []Table{NAT, Filter} {
		var info getinfo
		copy(info.name[:len(info.name)-1], t)
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, socket, uintptr(level), getInfo,
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
