package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/addrwatch"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Kernel is the kernel of this machine, in one network namespace.
type Kernel struct {
	link string
	ns   netns.NsHandle // for opening the handle again

	mu     sync.Mutex // one request at a time
	handle *ipvs.Handle
	routes *netlink.Handle
	dummy  int  // index of the dummy interface, 0 if not known
	down   bool // it was down when it was last read
	closed bool

	held    map[model.Family]map[netip.Addr]bool // addresses that the dummy interface should have, as last known here
	drifted map[model.Family]bool
	drift   chan struct{}
	stop    context.CancelFunc // ends the monitor
	monitor sync.WaitGroup
}

var _ Interface = (*Kernel)(nil)

// NewKernel opens the kernel's IPVS in the network namespace of the calling thread. link is the name of the dummy
// interface, "" for [DefaultLink]. If the module ip_vs is missing it tries modprobe, and returns a
// [*MissingModuleError] if that fails. On a big-endian processor it returns an error.
func NewKernel(ctx context.Context, link string) (*Kernel, error) {
	if link == "" {
		link = DefaultLink
	}
	if err := checkByteOrder(binary.NativeEndian); err != nil {
		return nil, err
	}
	if err := findIPVS(ctx); err != nil {
		return nil, err
	}
	k, err := openLink(link)
	if err != nil {
		return nil, err
	}
	if k.handle, err = ipvs.New(""); err != nil {
		return nil, errors.Join(fmt.Errorf("open IPVS: %w", err), k.Close())
	}
	return k, nil
}

// checkByteOrder returns an error on a big-endian processor. moby/ipvs reads two of the four bytes of a weight, which
// are zero there: each endpoint that a new process finds would seem to have no weight already, so that one that began
// to terminate meanwhile would keep getting connections.
func checkByteOrder(native binary.ByteOrder) error {
	if native.Uint16([]byte{0, 1}) == 1 {
		return errors.New("mode ipvs does not work on a big-endian processor: github.com/moby/ipvs reads the weights of " +
			"endpoints as 0 there; use nftables or iptables")
	}
	return nil
}

// openLink opens everything but IPVS.
func openLink(link string) (*Kernel, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink: %w", err), ns.Close())
	}
	updates, err := addrwatch.Subscribe(int(ns))
	if err != nil {
		routes.Close()
		return nil, errors.Join(err, ns.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &Kernel{link: link, ns: ns, routes: routes, held: map[model.Family]map[netip.Addr]bool{},
		drifted: map[model.Family]bool{}, drift: make(chan struct{}, 1), stop: stop}
	k.monitor.Go(func() { k.watch(ctx, updates) })
	return k, nil
}

// IsLoaded reports whether the kernel has IPVS, without loading it.
func IsLoaded() bool { return askForFamily() == nil }

// askForFamily asks for the family of IPVS in generic netlink: unix.ENOENT if the kernel does not have it. It is
// netlink.GenlFamilyGet with a header of its own: that function's is two bytes long and read as four, so it races with
// whoever writes the two bytes behind it.
func askForFamily() error {
	request := nl.NewNetlinkRequest(nl.GENL_ID_CTRL, 0)
	header := []byte{nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION, 0, 0}
	name := nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated("IPVS"))
	request.AddRawData(append(header, name.Serialize()...))
	_, err := request.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// findIPVS makes sure that the kernel has IPVS. It does not rely on moby/ipvs, which checks only once per process.
func findIPVS(ctx context.Context) error {
	err := askForFamily()
	if errors.Is(err, unix.ENOENT) {
		// A container may have neither the program nor the modules: the error below says what to do then.
		_ = exec.CommandContext(ctx, "modprobe", "ip_vs").Run()
		err = askForFamily()
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
	k.stop()
	k.monitor.Wait()
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
