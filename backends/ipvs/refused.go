package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// isRefusal reports whether an error means that the kernel does not accept an address or a virtual server, whatever
// else exists: for example an endpoint with the broadcast address of the node's network.
func isRefusal(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EAFNOSUPPORT)
}

// retryRefused makes the next commit try again what the kernel has refused. Otherwise that is tried only when it
// changes.
func (f *family) retryRefused() {
	for s := range f.refusing {
		for target := range s.refused {
			s.changed[target] = true
		}
		f.dirty[s] = true
	}
	for a := range f.refusedAddrs {
		f.dirtyAddrs[a] = true
	}
}

// refusals returns an error for each service port that is not completely served: because the kernel has refused a part
// of it, or because another program has a virtual server at its address and port.
func (f *family) refusals() error {
	refused := map[model.PortName][]error{}
	for key, name := range f.taken {
		refused[name] = append(refused[name], fmt.Errorf("%v is a virtual server of another program", key))
	}
	add := func(s *server, err error) {
		if p := f.owner[s]; p != nil {
			refused[p.name] = append(refused[p.name], err)
		}
	}
	for s := range f.refusing {
		if s.err != nil {
			add(s, s.err)
		}
		for _, err := range s.refused {
			add(s, err)
		}
	}
	for a, err := range f.refusedAddrs {
		for s := range f.users[a] {
			add(s, err)
		}
	}
	return frontend.PortErrors(f.key, refused)
}

// isRefused reports whether the kernel has refused a virtual server, or any of its real servers.
func (s *server) isRefused() bool { return s.err != nil || len(s.refused) > 0 }

// refuse notes that the kernel has refused a real server.
func (s *server) refuse(target netip.AddrPort, err error) {
	if s.refused == nil {
		s.refused = map[netip.AddrPort]error{}
	}
	s.refused[target] = err
}
