package dataplane

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Kernel is the kernel of this machine, in one network namespace.
type Kernel struct {
	link string
	ns   netns.NsHandle // for opening the handle again

	mu     sync.Mutex // one request at a time
	handle *ipvs.Handle
	routes *netlink.Handle
	dummy  int // index of the dummy interface, 0 if not known
	closed bool
}

var _ Interface = (*Kernel)(nil)

// NewKernel opens the kernel's IPVS in the network namespace of the calling thread. link is the name of the dummy
// interface, "" for [DefaultLink]. If the module ip_vs is missing it tries modprobe, and returns a
// [*MissingModuleError] if that fails.
func NewKernel(ctx context.Context, link string) (*Kernel, error) {
	if link == "" {
		link = DefaultLink
	}
	if err := findIPVS(ctx); err != nil {
		return nil, err
	}
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	k := &Kernel{link: link, ns: ns}
	if k.handle, err = ipvs.New(""); err != nil {
		return nil, errors.Join(fmt.Errorf("open IPVS: %w", err), ns.Close())
	}
	if k.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		k.handle.Close()
		return nil, errors.Join(fmt.Errorf("open netlink: %w", err), ns.Close())
	}
	return k, nil
}

// IsLoaded reports whether the kernel has IPVS, without loading it.
func IsLoaded() bool {
	_, err := netlink.GenlFamilyGet("IPVS")
	return err == nil
}

// findIPVS makes sure that the kernel has IPVS. It does not rely on moby/ipvs, which looks only once per process.
func findIPVS(ctx context.Context) error {
	_, err := netlink.GenlFamilyGet("IPVS")
	if errors.Is(err, unix.ENOENT) {
		// A container may have neither the program nor the modules: the error below says what to do then.
		_ = exec.CommandContext(ctx, "modprobe", "ip_vs").Run()
		_, err = netlink.GenlFamilyGet("IPVS")
	}
	if errors.Is(err, unix.ENOENT) {
		return &MissingModuleError{What: "IPVS", Module: "ip_vs"}
	}
	if err != nil {
		return fmt.Errorf("look for IPVS: %w", err)
	}
	return nil
}

// Close implements [Interface].
func (k *Kernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	if k.handle != nil {
		k.handle.Close()
		k.handle = nil
	}
	k.routes.Close()
	return k.ns.Close()
}

// alone makes one request, while there is no other. After Close there is none, because another file may have the
// descriptor of k.ns by then.
func (k *Kernel) alone(ctx context.Context, request func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return fmt.Errorf("IPVS: %w", os.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return request()
}

// do makes one request to IPVS. If ctx ends meanwhile, it closes the socket, because moby/ipvs would wait for the reply
// forever. An error begins with what was asked for.
func (k *Kernel) do(ctx context.Context, request func(*ipvs.Handle) error, format string, args ...any) error {
	err := k.alone(ctx, func() error {
		if k.handle == nil {
			h, err := ipvs.New(fmt.Sprintf("/proc/self/fd/%d", k.ns))
			if err != nil {
				return fmt.Errorf("open IPVS again: %w", err)
			}
			k.handle = h
		}
		h := k.handle
		stop := context.AfterFunc(ctx, h.Close)
		err := request(h)
		if !stop() {
			k.handle = nil
			return errors.Join(ctx.Err(), err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	}
	return nil
}

// hashed is a flag of virtual servers that the kernel sets itself.
const hashed = 0x2

func addressFamily(f model.Family) uint16 {
	if f == model.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func service(s Server) *ipvs.Service {
	svc := &ipvs.Service{AddressFamily: addressFamily(s.Family), FWMark: s.Mark, SchedName: s.Scheduler,
		Flags: uint32(s.Flags), Timeout: uint32(s.Persistence / time.Second), Netmask: math.MaxUint32}
	if s.Family == model.IPv6 {
		svc.Netmask = 128
	}
	if s.Mark == 0 {
		svc.Address, svc.Port, svc.Protocol = s.Addr.AsSlice(), s.Port, uint16(s.Protocol)
	}
	return svc
}

func server(svc *ipvs.Service) Server {
	s := Server{ServerKey: ServerKey{Family: model.IPv4, Mark: svc.FWMark}, Scheduler: svc.SchedName,
		Flags: Flags(svc.Flags &^ hashed)}
	if svc.AddressFamily == unix.AF_INET6 {
		s.Family = model.IPv6
	}
	if s.Flags&Persistent != 0 {
		s.Persistence = time.Duration(svc.Timeout) * time.Second
	}
	if s.Mark == 0 {
		s.Addr, _ = netip.AddrFromSlice(svc.Address)
		s.Port, s.Protocol = svc.Port, model.Protocol(svc.Protocol)
	}
	return s
}

func byKey(key ServerKey) *ipvs.Service { return service(Server{ServerKey: key}) }

func destination(d Destination) *ipvs.Destination {
	return &ipvs.Destination{Address: d.Target.Addr().AsSlice(), Port: d.Target.Port(), Weight: d.Weight,
		ConnectionFlags: ipvs.ConnectionFlagMasq, AddressFamily: addressFamily(model.FamilyOf(d.Target.Addr()))}
}

// Servers implements [Interface].
func (k *Kernel) Servers(ctx context.Context) (list []Server, err error) {
	err = k.do(ctx, func(h *ipvs.Handle) error {
		services, err := h.GetServices()
		for _, svc := range services {
			list = append(list, server(svc))
		}
		return err
	}, "list virtual servers")
	return list, err
}

// AddServer implements [Interface].
func (k *Kernel) AddServer(ctx context.Context, s Server) error {
	return k.do(ctx, func(h *ipvs.Handle) error { return h.NewService(service(s)) },
		"add virtual server %v", s.ServerKey)
}

// UpdateServer implements [Interface].
func (k *Kernel) UpdateServer(ctx context.Context, s Server) error {
	return k.do(ctx, func(h *ipvs.Handle) error { return h.UpdateService(service(s)) },
		"change virtual server %v", s.ServerKey)
}

// DeleteServer implements [Interface].
func (k *Kernel) DeleteServer(ctx context.Context, key ServerKey) error {
	return ignoreMissing(k.do(ctx, func(h *ipvs.Handle) error { return h.DelService(byKey(key)) },
		"delete virtual server %v", key))
}

// Destinations implements [Interface].
func (k *Kernel) Destinations(ctx context.Context, key ServerKey) (list []Destination, err error) {
	err = k.do(ctx, func(h *ipvs.Handle) error {
		destinations, err := h.GetDestinations(byKey(key))
		for _, d := range destinations {
			a, _ := netip.AddrFromSlice(d.Address)
			list = append(list, Destination{Target: netip.AddrPortFrom(a, d.Port), Weight: d.Weight,
				Active: d.ActiveConnections, Inactive: d.InactiveConnections})
		}
		return err
	}, "list endpoints of %v", key)
	return list, err
}

// AddDestination implements [Interface].
func (k *Kernel) AddDestination(ctx context.Context, key ServerKey, d Destination) error {
	return k.do(ctx, func(h *ipvs.Handle) error { return h.NewDestination(byKey(key), destination(d)) },
		"add endpoint %v to %v", d.Target, key)
}

// UpdateDestination implements [Interface].
func (k *Kernel) UpdateDestination(ctx context.Context, key ServerKey, d Destination) error {
	return k.do(ctx, func(h *ipvs.Handle) error { return h.UpdateDestination(byKey(key), destination(d)) },
		"change endpoint %v of %v to weight %d", d.Target, key, d.Weight)
}

// DeleteDestination implements [Interface].
func (k *Kernel) DeleteDestination(ctx context.Context, key ServerKey, target netip.AddrPort) error {
	d := destination(Destination{Target: target})
	return ignoreMissing(k.do(ctx, func(h *ipvs.Handle) error { return h.DelDestination(byKey(key), d) },
		"delete endpoint %v of %v", target, key))
}

// SetTimeouts implements [Interface].
func (k *Kernel) SetTimeouts(ctx context.Context, t Timeouts) error {
	return k.do(ctx, func(h *ipvs.Handle) error {
		return h.SetConfig(&ipvs.Config{TimeoutTCP: t.TCP, TimeoutTCPFin: t.TCPFin, TimeoutUDP: t.UDP})
	}, "set timeouts %v", t)
}

// find returns the dummy interface, nil if there is none.
func (k *Kernel) find() (netlink.Link, error) {
	link, err := k.routes.LinkByName(k.link)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		k.dummy = 0
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", k.link, err)
	}
	if link.Type() != "dummy" {
		return nil, fmt.Errorf("interface %s is a %s, not a dummy interface", k.link, link.Type())
	}
	k.dummy = link.Attrs().Index
	return link, nil
}

// ensure creates the dummy interface unless it exists, and returns its index.
func (k *Kernel) ensure() (int, error) {
	if k.dummy != 0 {
		return k.dummy, nil
	}
	link, err := k.find()
	if err != nil {
		return 0, err
	}
	if link == nil {
		err := k.routes.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: k.link}})
		if errors.Is(err, unix.EOPNOTSUPP) {
			return 0, &MissingModuleError{What: "dummy interfaces", Module: "dummy"}
		}
		if err != nil {
			return 0, fmt.Errorf("add interface %s: %w", k.link, err)
		}
		if link, err = k.find(); err != nil || link == nil {
			return 0, fmt.Errorf("interface %s is gone again: %w", k.link, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := k.routes.LinkSetUp(link); err != nil {
			return 0, fmt.Errorf("interface %s: set up: %w", k.link, err)
		}
	}
	return k.dummy, nil
}

// maxDumps is how often the addresses are listed until nobody changes any meanwhile.
const maxDumps = 10

// Addresses implements [Interface].
func (k *Kernel) Addresses(ctx context.Context, f model.Family) (list []netip.Addr, err error) {
	err = k.alone(ctx, func() error {
		link, err := k.find()
		if err != nil || link == nil {
			return err
		}
		var addrs []netlink.Addr
		for range maxDumps {
			addrs, err = k.routes.AddrList(link, int(addressFamily(f)))
			if !errors.Is(err, netlink.ErrDumpInterrupted) { // another address was added or removed meanwhile
				break
			}
		}
		if err != nil {
			return fmt.Errorf("addresses of %s: %w", k.link, err)
		}
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			if ip = ip.Unmap(); ok && !ip.IsLinkLocalUnicast() {
				list = append(list, ip)
			}
		}
		return nil
	})
	return list, err
}

// address returns an address with the attributes for the kernel. IPv6 addresses are deprecated from the beginning, so
// that none is chosen as a source address.
func address(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is6() {
		addr.Flags, addr.PreferedLft, addr.ValidLft = unix.IFA_F_NODAD, 0, math.MaxUint32
	}
	return addr
}

// AddAddress implements [Interface].
func (k *Kernel) AddAddress(ctx context.Context, a netip.Addr) error {
	return k.alone(ctx, func() error {
		known := k.dummy != 0
		err := k.addAddress(a)
		if errors.Is(err, unix.ENODEV) && known { // another program has deleted the interface
			k.dummy = 0
			err = k.addAddress(a)
		}
		return err
	})
}

func (k *Kernel) addAddress(a netip.Addr) error {
	index, err := k.ensure()
	if err != nil {
		return err
	}
	err = k.routes.AddrAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, address(a))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %v to %s: %w", a, k.link, err)
	}
	return nil
}

// DeleteAddress implements [Interface].
func (k *Kernel) DeleteAddress(ctx context.Context, a netip.Addr) error {
	return k.alone(ctx, func() error {
		if k.dummy == 0 {
			if link, err := k.find(); err != nil || link == nil {
				return err
			}
		}
		err := k.routes.AddrDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: k.dummy}}, address(a))
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete address %v from %s: %w", a, k.link, err)
		}
		return nil
	})
}

// DeleteLink implements [Interface].
func (k *Kernel) DeleteLink(ctx context.Context) error {
	return k.alone(ctx, func() error {
		link, err := k.find()
		if err != nil || link == nil {
			return err
		}
		k.dummy = 0
		if err := k.routes.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete interface %s: %w", k.link, err)
		}
		return nil
	})
}
