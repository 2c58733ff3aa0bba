package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// failedPorts returns the service ports that a Sync failed for, which may not have failed otherwise.
func failedPorts(t *testing.T, err error) []string {
	t.Helper()
	require.Error(t, err)
	require.Zero(t, sink.FailedFamilies(err), "%v", err)
	var names []string
	for _, e := range sink.PortErrors(err) {
		names = append(names, e.Port.String())
	}
	return names
}

// A user who may write EndpointSlices may write addresses that the kernel does not accept for a host.
func TestAnEndpointThatTheKernelRefusesFailsItsServicePortAlone(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	refuses := true
	k.ipvs.SetFail(func(call string) error {
		if refuses && call == "add endpoint 10.0.0.255:8080 to 10.96.0.10:80/TCP" {
			return syscall.EINVAL
		}
		return nil
	})
	evil := fm.Endpoint("default/web:http/TCP", "10.0.0.255:8080").Build()
	backendtest.Set(t, b, append(web(), evil)...)
	err := b.Sync(t.Context())
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, err))
	require.ErrorContains(t, err, "add endpoint 10.0.0.255:8080 to 10.96.0.10:80/TCP: invalid argument")
	want := newKernel(t)
	put(t, want.start(t), web()...)
	require.Equal(t, want.ipvs.Dump(), k.ipvs.Dump(), "everything else is served")

	k.ipvs.TakeCalls()
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	require.Zero(t, k.ipvs.TakeCalls(), "it is tried again when the runner says so")
	b.SetEndpoint(fm.Endpoint("default/web:http/TCP", "10.244.9.9:8080").Build())
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	require.Len(t, k.ipvs.TakeCalls().Writes, 1)

	b.ResyncFailed()
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	require.Equal(t, []string{"add endpoint 10.0.0.255:8080 to 10.96.0.10:80/TCP"}, k.ipvs.TakeCalls().Writes)
	refuses = false
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, k.ipvs.Dump(), "-r 10.0.0.255:8080")
}

func TestARefusedEndpointThatGoesIsForgotten(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	k.ipvs.SetFail(func(call string) error {
		if call == "add endpoint 10.0.0.255:8080 to 10.96.0.10:80/TCP" {
			return syscall.EINVAL
		}
		return nil
	})
	evil := fm.Endpoint("default/web:http/TCP", "10.0.0.255:8080").Build()
	backendtest.Set(t, b, append(web(), evil)...)
	failedPorts(t, b.Sync(t.Context()))
	b.DeleteEndpoint(evil.Key())
	require.NoError(t, b.Sync(t.Context()))

	b.SetEndpoint(evil)
	failedPorts(t, b.Sync(t.Context()))
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(t.Context()))
	require.Empty(t, k.ipvs.Dump())
}

func TestAVirtualServerThatTheKernelRefusesFailsItsServicePortAlone(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	refuses := true
	k.ipvs.SetFail(func(call string) error {
		if refuses && call == "add virtual server 10.96.0.10:80/UDP" {
			return syscall.EINVAL
		}
		return nil
	})
	backendtest.Set(t, b, web()...)
	require.Equal(t, []string{"default/web:udp/UDP"}, failedPorts(t, b.Sync(t.Context())))
	require.Contains(t, k.ipvs.Dump(), "-t 10.96.0.10:80")
	refuses = false
	b.ForceResync()
	require.NoError(t, b.Sync(t.Context()))
	want := newKernel(t)
	put(t, want.start(t), web()...)
	require.Equal(t, want.ipvs.Dump(), k.ipvs.Dump())
}

// After the failure of any single request, the next Sync reads nothing, and other services are served.
func TestAnErrorOfOneRequestFailsItsServicePortAlone(t *testing.T) {
	other := []any{fm.Service("default/other").ClusterIP("10.96.0.20").Port("http", 80).Build(),
		fm.Endpoint("default/other:http/TCP", pod1.String()).Build()}
	want := newKernel(t)
	put(t, want.start(t), append(web(), other...)...)
	for _, call := range []string{"add virtual server 10.96.0.10:80/TCP", "add address 10.96.0.10",
		"add endpoint 10.244.2.5:8080 to 10.96.0.10:80/TCP"} {
		for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENOENT, syscall.EEXIST, syscall.ESRCH} {
			k := newKernel(t)
			b := k.start(t)
			k.ipvs.SetFail(failOn(call, errno))
			backendtest.Set(t, b, append(web(), other...)...)
			require.Contains(t, failedPorts(t, b.Sync(t.Context())), "default/web:http/TCP", "%s: %v", call, errno)
			require.Contains(t, k.ipvs.Dump(), "-a -t 10.96.0.20:80 -r 10.244.1.5:8080 -m -w 1")
			k.ipvs.TakeCalls()
			failedPorts(t, b.Sync(t.Context()))
			require.Zero(t, k.ipvs.TakeCalls())
			k.ipvs.SetFail(nil)
			b.ResyncFailed()
			put(t, b)
			require.Equal(t, want.ipvs.Dump(), k.ipvs.Dump(), "%s: %v", call, errno)
			require.Equal(t, want.table(model.IPv4), k.table(model.IPv4))
		}
	}
}

// An object that no service needs any more, and that cannot be deleted, is nobody's error: it is deleted once that is
// possible.
func TestWhatCannotBeDeletedGoesLater(t *testing.T) {
	for _, call := range []string{"delete virtual server 10.96.0.10:80/UDP", "delete address 10.96.0.10"} {
		k := newKernel(t)
		b := k.start(t)
		put(t, b, web()...)
		k.ipvs.SetFail(failOn(call, syscall.ENOMEM))
		b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
		put(t, b)
		require.NotEmpty(t, k.ipvs.Dump())
		k.ipvs.SetFail(nil)
		k.ipvs.TakeCalls()
		b.drain(t, model.IPv4)
		require.Empty(t, k.ipvs.Dump(), call)
		require.NotContains(t, k.ipvs.TakeCalls().Reads, "Servers")
	}
}

// The API server takes multicast addresses as external IPs. The kernel does not take those of IPv6 for its own.
func TestAnAddressThatTheKernelRefusesFailsTheServicePortsThatHaveIt(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	service := func(addrs ...string) *model.Service {
		s := *fm.Service("default/web").ClusterIP("fd00:96::10").ExternalIP("2001:db8::1").Port("http", 80).
			UDPPort("udp", 53).Build()
		for _, a := range addrs {
			s.ExternalIPs = append(slices.Clone(s.ExternalIPs), netip.MustParseAddr(a))
		}
		return &s
	}
	b.SetService(service("ff0e::1"))
	b.SetEndpoint(fm.Endpoint("default/web:http/TCP", "[fd00:244::1]:8080").Build())
	err := b.Sync(t.Context())
	require.Equal(t, []string{"default/web:http/TCP", "default/web:udp/UDP"}, failedPorts(t, err))
	require.ErrorContains(t, err, "cannot assign requested address")
	require.Contains(t, k.ipvs.Dump(), "address 2001:db8::1\naddress fd00:96::10\n")

	k.ipvs.TakeCalls()
	failedPorts(t, b.Sync(t.Context()))
	require.Zero(t, k.ipvs.TakeCalls())
	b.ResyncFailed()
	failedPorts(t, b.Sync(t.Context()))
	require.Equal(t, []string{"add address ff0e::1"}, k.ipvs.TakeCalls().Writes)

	b.SetService(service())
	require.NoError(t, b.Sync(t.Context()))
	require.NotContains(t, k.ipvs.Dump(), "ff0e::1")
	require.NotContains(t, k.table(model.IPv6), "ff0e::1")
}

// The table does not deliver a service port that serves an address again, because another service gave it up.
func TestANodePortThatIsRefusedAtAnAddressThatAnotherServiceGaveUpFails(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	other := fm.Service("default/aaa").ClusterIP("10.96.0.11").ExternalIP("192.0.2.10").Port("http", 30080).Build()
	put(t, b, backendtest.Node(), other, fm.Endpoint("default/aaa:http/TCP", pod2.String()).Build())
	put(t, b, fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).Build(),
		fm.Endpoint("default/web:http/TCP", pod1.String()).Build())
	k.ipvs.SetFail(failOn("add endpoint "+pod1.String()+" to 192.0.2.10:30080/TCP", syscall.EINVAL))
	b.DeleteService(other.Name)
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())), "until it is tried again")
	k.ipvs.SetFail(nil)
	b.ResyncFailed()
	put(t, b)
	require.Contains(t, k.ipvs.Dump(), "-a -t 192.0.2.10:30080 -r "+pod1.String())
}

// A load balancer must not send to a node where none of a Service's external frontends is served (S38).
func TestAnErrorSaysWhetherOutsideClientsReachThePort(t *testing.T) {
	vip := fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).LoadBalancerIP("203.0.113.1").Build()
	both := fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).LoadBalancerIP("203.0.113.1").
		NodePort(30080).Build()
	for call, want := range map[string][2]bool{ // with the VIP alone, and with a node port
		"add virtual server 203.0.113.1:80/TCP":                      {false, true},
		"add address 203.0.113.1":                                    {false, true},
		"add endpoint " + pod1.String() + " to 203.0.113.1:80/TCP":   {false, true},
		"add virtual server":                                         {false, false},
		"add endpoint " + pod1.String():                              {false, false},
		"add virtual server 10.96.0.10:80/TCP":                       {true, true},
		"add endpoint " + pod1.String() + " to 10.96.0.10:80/TCP":    {true, true},
		"add endpoint " + pod1.String() + " to 192.0.2.10:30080/TCP": {true, true},
	} {
		for i, s := range []*model.Service{vip, both} {
			if i == 0 && strings.Contains(call, "192.0.2.10") {
				continue
			}
			k := newKernel(t)
			b := k.start(t)
			k.ipvs.SetFail(failOn(call, syscall.EINVAL))
			backendtest.Set(t, b, backendtest.Node(), s, fm.Endpoint("default/web:http/TCP", pod1.String()).Build())
			for range 2 {
				errs := sink.PortErrors(b.Sync(t.Context()))
				require.Len(t, errs, 1, call)
				require.Equal(t, want[i], errs[0].ServesExternal, "%s: %v", call, s.Ports[0].NodePort)
			}
			k.ipvs.SetFail(nil)
			b.ResyncFailed()
			put(t, b)
		}
	}
}
