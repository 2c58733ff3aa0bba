package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Interface is a kernel's IPVS and the dummy interface for service addresses, or something that behaves like them.
// Calls may come from several goroutines. Deleting what does not exist is not an error. Errors name the request; those
// of the kernel wrap a syscall.Errno: EEXIST for what exists already, ESRCH for a virtual server that does not exist,
// also when the call is about one of its real servers, ENOENT for a real server that does not exist, and for a
// scheduler without a module, EINVAL for a real server at what is no host's address, and EADDRNOTAVAIL for an address
// that no interface can have.
type Interface interface {
	// Servers returns all virtual servers, also those of others.
	Servers(ctx context.Context) ([]Server, error)
	AddServer(ctx context.Context, s Server) error
	// UpdateServer changes everything but the key. Connections and real servers stay.
	UpdateServer(ctx context.Context, s Server) error
	// DeleteServer deletes a virtual server with its real servers. Its connections end.
	DeleteServer(ctx context.Context, key ServerKey) error

	// Destinations returns the real servers of a virtual server, none if there is no such virtual server.
	Destinations(ctx context.Context, key ServerKey) ([]Destination, error)
	AddDestination(ctx context.Context, key ServerKey, d Destination) error
	// UpdateDestination changes the weight.
	UpdateDestination(ctx context.Context, key ServerKey, d Destination) error
	// DeleteDestination deletes a real server. Its connections end.
	DeleteDestination(ctx context.Context, key ServerKey, target netip.AddrPort) error

	// SetTimeouts sets those that are not 0.
	SetTimeouts(ctx context.Context, t Timeouts) error

	// Addresses returns the addresses of a family on the dummy interface, none if there is no such interface.
	Addresses(ctx context.Context, f model.Family) ([]netip.Addr, error)
	// AddAddress adds an address, and creates the interface if necessary. An existing address is not an error.
	AddAddress(ctx context.Context, a netip.Addr) error
	DeleteAddress(ctx context.Context, a netip.Addr) error
	// DeleteLink deletes the interface.
	DeleteLink(ctx context.Context) error

	// Delivery reports how the kernel delivers packets of a family by their mark: want if it delivers those with this bit
	// to this machine, whatever their destination, 0 if it delivers none, and [IncompleteDelivery] if Deliver would
	// correct something.
	Delivery(ctx context.Context, f model.Family, want uint32) (mark uint32, err error)
	// Deliver makes the kernel deliver packets with a bit of the mark to this machine, instead of those with another
	// bit; 0 ends that. EEXIST: another program has a rule or route that comes first.
	Deliver(ctx context.Context, f model.Family, mark uint32) error

	// Drift receives a value soon after another program deleted the interface, or an address of it that was read or added
	// here.
	Drift() <-chan struct{}
	// Drifted reports whether another program may have deleted such an address of a family. Addresses resets it.
	Drifted(f model.Family) bool

	// Close releases its resources, and leaves everything as it is.
	Close() error
}

// ignoreMissing returns the error of a request to delete something, nil if there was no such thing.
func ignoreMissing(err error) error {
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return err
}

// ServerKey identifies a virtual server: by address, protocol and port, or by a firewall mark.
type ServerKey struct {
	// Family is that of Addr and of the real servers. The same mark is another virtual server in each family.
	Family model.Family
	// Addr, Port and Protocol are the destination of packets. They are zero if Mark is not 0.
	Addr     netip.Addr
	Port     uint16
	Protocol model.Protocol
	// Mark is the whole packet mark, not a bit of it.
	Mark uint32
}

// String returns for example "10.96.0.10:80/TCP" or "IPv4 mark 0x1".
func (k ServerKey) String() string {
	if k.Mark != 0 {
		return fmt.Sprintf("%v mark %#x", k.Family, k.Mark)
	}
	return fmt.Sprintf("%v/%v", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// Compare orders by family, mark, address, port and protocol.
func (k ServerKey) Compare(o ServerKey) int {
	return cmp.Or(cmp.Compare(k.Family, o.Family), cmp.Compare(k.Mark, o.Mark), k.Addr.Compare(o.Addr),
		cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol))
}

// Server is a virtual server.
type Server struct {
	// ServerKey cannot be changed.
	ServerKey
	// Scheduler is the kernel's name of the algorithm that chooses a real server, for example "rr".
	Scheduler string
	// Flags hold the scheduler's options and say whether clients stay with a real server and whether the backend owns
	// the virtual server.
	Flags Flags
	// Persistence is how long a client stays with its real server, in whole seconds; only with the flag Persistent.
	Persistence time.Duration
}

// Flags of a virtual server, with the kernel's numbers.
type Flags uint32

const (
	// Persistent: clients stay with their real server.
	Persistent Flags = 0x1
	// SourceHashFallback is for scheduler sh: a client whose real server takes no new connections gets another one.
	SourceHashFallback Flags = 0x8
	// MaglevPort is for scheduler mh: the source port counts, too.
	MaglevPort Flags = 0x10
	// Owned marks the backend's virtual servers. It is the kernel's third flag for schedulers, which none of its
	// schedulers reads; ipvsadm prints it as "flag-3", but not with schedulers sh and mh.
	Owned Flags = 0x20
)

// Destination is a real server.
type Destination struct {
	// Target identifies the real server in its virtual server. It is reached by NAT (masquerading, "ipvsadm -m").
	Target netip.AddrPort
	// Weight is the share of new connections. A real server of weight 0 gets none.
	Weight int
	// Active is how many established connections there are, and Inactive how many others: opening, closing, or without
	// a state. The kernel counts them.
	Active, Inactive int
}

// Text returns a virtual server and its real servers as "ipvsadm -Sn" prints them, a line for each.
func Text(s Server, list []Destination) string {
	var b strings.Builder
	fmt.Fprintf(&b, "-A %s -s %s", s.option(), s.Scheduler)
	if s.Flags&Persistent != 0 {
		fmt.Fprintf(&b, " -p %d", s.Persistence/time.Second)
	}
	if flags := s.schedulerFlags(); len(flags) > 0 {
		fmt.Fprintf(&b, " -b %s", strings.Join(flags, ","))
	}
	b.WriteString("\n")
	for _, d := range list {
		fmt.Fprintf(&b, "-a %s -r %v -m -w %d\n", s.option(), d.Target, d.Weight)
	}
	return b.String()
}

// option returns the option of ipvsadm that names a virtual server.
func (k ServerKey) option() string {
	switch {
	case k.Mark != 0 && k.Family == model.IPv6:
		return fmt.Sprintf("-f %d -6", k.Mark)
	case k.Mark != 0:
		return fmt.Sprintf("-f %d", k.Mark)
	}
	option := map[model.Protocol]string{model.TCP: "-t", model.UDP: "-u", model.SCTP: "--sctp-service"}[k.Protocol]
	return fmt.Sprintf("%s %v", option, netip.AddrPortFrom(k.Addr, k.Port))
}

// schedulerFlags returns the names of the scheduler's flags. With a scheduler that has names for the first two, ipvsadm
// does not print the third.
func (s *Server) schedulerFlags() (names []string) {
	first, second, third := "flag-1", "flag-2", "flag-3"
	if s.Scheduler == "sh" || s.Scheduler == "mh" {
		first, second, third = s.Scheduler+"-fallback", s.Scheduler+"-port", ""
	}
	for _, f := range []struct {
		flag Flags
		name string
	}{{SourceHashFallback, first}, {MaglevPort, second}, {Owned, third}} {
		if s.Flags&f.flag != 0 && f.name != "" {
			names = append(names, f.name)
		}
	}
	return names
}

// Packets are delivered by their mark: by a routing rule with this priority, which sends them to a table of this
// number, and by a route there, "local default dev lo". A rule or route is deleted only if it has this protocol, which
// says that this library made it.
const (
	DeliveryPriority = 63
	DeliveryTable    = 7041132
	DeliveryProtocol = 107
)

// IncompleteDelivery is a result of Delivery.
const IncompleteDelivery = math.MaxUint32

// Timeouts of connections, of the whole network namespace. 0 leaves the kernel's value as it is.
type Timeouts struct {
	// TCP is for connections without traffic, TCPFin for those that one side has closed, UDP for flows without packets.
	// The kernel has whole seconds.
	TCP, TCPFin, UDP time.Duration
}

// MissingModuleError says that the kernel lacks a module.
type MissingModuleError struct {
	What   string // for example "IPVS"
	Module string // the name that modprobe takes
}

// Error says what is missing and how to load it.
func (e *MissingModuleError) Error() string {
	return fmt.Sprintf("the kernel has no %s: load the module %s (modprobe %s)", e.What, e.Module, e.Module)
}

// DefaultLink is the name of the dummy interface. It differs from upstream kube-proxy's, kube-ipvs0, so that neither
// mistakes the other's addresses for its own.
const DefaultLink = "kpl-ipvs0"
