package health

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// external is a service of both families with a health check, two endpoints on this node in each family, and node
// ports.
func external(ports ...string) *model.Service {
	s := service("web", 32000, 2, 2)
	routes := model.Routes{External: model.Route{Endpoints: model.LocalSet}}
	for n, name := range ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: name, Protocol: model.TCP, Port: uint16(80 + n),
			NodePort: uint16(30080 + n), Routes: model.PerFamily[model.Routes]{IPv4: routes, IPv6: routes}})
	}
	return s
}

// A Service of which outside clients reach nothing on this node fails its health check.
func TestAServiceThatIsNotServedFailsItsHealthCheck(t *testing.T) {
	const v4, v6 = model.IPv4, model.IPv6
	refused := func(port string, f model.Family) *sink.PortError {
		return &sink.PortError{Port: external().PortName(model.ServicePort{Name: port, Protocol: model.TCP}), Family: f,
			Err: errors.New("refused")}
	}
	partly := func(port string, f model.Family) *sink.PortError {
		e := refused(port, f)
		e.ServesExternal = true
		return e
	}
	join := func(errs ...*sink.PortError) (joined error) {
		for _, e := range errs {
			joined = errors.Join(joined, e)
		}
		return joined
	}
	other := func(e *sink.PortError) *sink.PortError {
		e.Port.Service.Name = "other"
		return e
	}
	for _, test := range []struct {
		name   string
		ports  []string
		change func(*model.Service)
		err    error
		served bool
	}{
		{"nothing is refused", []string{"http"}, nil, nil, true},
		{"its only port is refused", []string{"http"}, nil, join(refused("http", v4), refused("http", v6)), false},
		{"it is refused in one family", []string{"http"}, nil, join(refused("http", v6)), true},
		{"the error is that of a family", []string{"http"}, nil, errors.Join(
			&sink.FamilyError{Family: v4, Err: refused("http", v4)}, &sink.FamilyError{Family: v6, Err: refused("http", v6)}),
			false},
		{"one of two ports is refused", []string{"http", "https"}, nil, join(refused("http", v4), refused("http", v6)), true},
		{"each port is refused in one family", []string{"http", "https"}, nil,
			join(refused("http", v4), refused("https", v6)), true},
		{"both ports are refused", []string{"http", "https"}, nil, join(refused("http", v4), refused("http", v6),
			refused("https", v4), refused("https", v6)), false},
		{"a part of the port is refused", []string{"http"}, nil, join(partly("http", v4), partly("http", v6)), true},
		{"a part is refused for one reason, all of it for another one", []string{"http"}, nil, join(partly("http", v4),
			partly("http", v6), refused("http", v4), refused("http", v6)), false},
		{"another service is refused", []string{"http"}, nil,
			join(other(refused("http", v4)), other(refused("http", v6))), true},
		{"its endpoints are too many", []string{"http"}, func(s *model.Service) { s.Ports[0].TooManyEndpoints = true }, nil,
			false},
		{"the endpoints are too many for one of two ports", []string{"http", "https"},
			func(s *model.Service) { s.Ports[0].TooManyEndpoints = true }, nil, true},
		{"the port that is left is not for outside clients", []string{"http", "metrics"},
			func(s *model.Service) { s.Ports[1].NodePort = 0 }, join(refused("http", v4), refused("http", v6)), false},
		{"the port that is left has a VIP", []string{"http", "https"}, func(s *model.Service) {
			s.Ports[1].NodePort = 0
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}, join(refused("http", v4), refused("http", v6)), true},
		{"it has nothing for outside clients yet", []string{"http"}, func(s *model.Service) { s.Ports[0].NodePort = 0 },
			join(refused("http", v4), refused("http", v6)), true},
		{"the node serves one family alone", []string{"http"}, func(s *model.Service) {
			s.Ports[0].Routes.IPv6 = model.Routes{}
		}, join(refused("http", v4)), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, next := &listeners{}, &sink.Recorder{}
			s := NewServices(next, ServicesOptions{Listen: l.listen})
			defer s.Close()
			web := external(test.ports...)
			if test.change != nil {
				test.change(web)
			}
			s.SetService(web)
			if test.err != nil {
				next.FailNext(test.err)
			}
			require.Equal(t, test.err, s.Sync(t.Context()))
			want := map[bool]int{true: 200, false: 503}[test.served]
			for _, address := range []string{"0.0.0.0:32000", "[::]:32000"} {
				code, header, _ := l.get(t, address)
				assert.Equal(t, want, code, address)
				assert.Equal(t, fmt.Sprint(map[bool]int{true: 2}[test.served]), header.Get("X-Load-Balancing-Endpoint-Weight"))
			}
		})
	}
}

// A Service of many ports and addresses, of which none is served: its addresses are looked at once, not for each port.
func TestWhatAServiceThatIsNotServedCosts(t *testing.T) {
	const ports, each = 500, 500
	var names []string
	var errs []error
	for n := range ports {
		names = append(names, fmt.Sprint("p", n))
	}
	web := external(names...)
	for n := range web.Ports {
		web.Ports[n].NodePort = 0
		errs = append(errs, &sink.PortError{Port: web.PortName(web.Ports[n]), Family: model.IPv4, Err: errors.New("refused")})
	}
	for n := range each {
		a := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		web.LoadBalancerIPs, web.ExternalIPs = append(web.LoadBalancerIPs, a), append(web.ExternalIPs, a)
	}
	l, next := &listeners{}, &sink.Recorder{}
	s := NewServices(next, ServicesOptions{Listen: l.listen})
	defer s.Close()
	s.SetService(web)
	next.FailNext(errors.Join(errs...))
	require.Error(t, s.Sync(t.Context()))
	code, _, _ := l.get(t, "0.0.0.0:32000")
	assert.Equal(t, 503, code)
	assert.LessOrEqual(t, s.outside.looked, 2*each, "addresses")
}

// failing is a sink whose Sync returns an error.
type failing struct {
	*sink.Forward
	err error
}

func (f *failing) Sync(context.Context) error { return f.err }

// The answer follows the errors, whether or not the service changes.
func TestTheHealthCheckFollowsTheErrors(t *testing.T) {
	l, next := &listeners{}, &failing{Forward: sink.NewForward(nil)}
	s := NewServices(next, ServicesOptions{Listen: l.listen})
	defer s.Close()
	web := external("http")
	port := func(f model.Family) error {
		return &sink.PortError{Port: web.PortName(web.Ports[0]), Family: f, Err: errors.New("refused")}
	}
	both := errors.Join(port(model.IPv4), port(model.IPv6))
	code := func(err error) int {
		next.err = err
		require.Equal(t, err, s.Sync(t.Context()))
		code, _, _ := l.get(t, "0.0.0.0:32000")
		return code
	}
	s.SetService(web)
	assert.Equal(t, 200, code(nil))
	assert.Equal(t, 503, code(both), "it is refused")
	s.SetService(external("http"))
	assert.Equal(t, 503, code(both), "the same error")
	assert.Equal(t, 503, code(errors.New("nothing is applied")), "as it was")
	assert.Equal(t, 503, code(errors.Join(&sink.FamilyError{Family: model.IPv6, Err: errors.New("not applied")},
		port(model.IPv4))), "IPv6 is as it was")
	assert.Equal(t, 200, code(port(model.IPv4)), "it is served in a family")
	assert.Equal(t, 503, code(both))
	s.DeleteService(web.Name)
	next.err = both
	require.Error(t, s.Sync(t.Context()))
	s.SetService(external("http"))
	assert.Equal(t, 503, code(both), "made again while the error stays")
	assert.Equal(t, 200, code(nil), "the error goes")
}
