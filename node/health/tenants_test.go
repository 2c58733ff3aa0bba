package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// The dimensions of what a tenant asks for.
const (
	nServices  = iota // Services of the tenant, each with a health check and the following:
	nPorts            // ports
	nVIPs             // VIPs
	nExternals        // external IPs
	numDimensions
)

// demand is how much a tenant asks for in each dimension.
type demand [numDimensions]int

func (d demand) String() string {
	var parts []string
	for i, name := range [numDimensions]string{"services", "ports", "VIPs", "externals"} {
		parts = append(parts, fmt.Sprint(d[i], " ", name))
	}
	return strings.Join(parts, ", ")
}

// ofService is how many items a Service has.
func (d demand) ofService() int { return 1 + d[nPorts] + d[nVIPs] + d[nExternals] }

// service is the i-th Service. The host has all of its addresses, as in mode ipvs.
func (d demand) service(i int) *model.Service {
	s := external(numbered(d[nPorts])...)
	s.Name.Name = fmt.Sprint("s", i)
	check := *s.HealthCheck
	check.NodePort = uint16(10000 + i)
	s.HealthCheck = &check
	address := func(first byte, n int) netip.Addr {
		n += i * (d[nVIPs] + d[nExternals])
		return netip.AddrFrom4([4]byte{first, byte(n >> 16), byte(n >> 8), byte(n)})
	}
	for n := range d[nVIPs] {
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, address(203, n))
	}
	for n := range d[nExternals] {
		s.ExternalIPs = append(s.ExternalIPs, address(198, n))
	}
	return s
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("p", i))
	}
	return names
}

// step is something that a tenant does, and what it costs.
type step struct {
	name   string
	opened int // sockets
	looked int // addresses
	testkit.Work
	linear int // the number of items in which the work has to be linear
}

// tenantSteps has a tenant do everything, beside a bystander whose changes have to cost what they cost without it. Call
// it in a bubble of synctest.
func tenantSteps(t *testing.T, d demand) (steps []step) {
	next, opened := &failing{Forward: sink.NewForward(nil)}, 0
	host := addresses(0, "192.0.2.1")
	s := NewServices(next, ServicesOptions{
		Addresses:     func() nodeaddr.Addresses { return addresses(0, "192.0.2.1") },
		HostAddresses: func() nodeaddr.Addresses { return host },
		Listen: func(context.Context, string, string) (net.Listener, error) {
			opened++
			return newIdleListener(), nil
		}})
	defer s.Close()
	ctx := klog.NewContext(t.Context(), logr.Discard())
	sync := func() { assert.Equal(t, next.err, s.Sync(ctx)) }
	measure := func(name string, linear int, f func()) step {
		wasOpened, looked := opened, s.outside.looked
		w := testkit.Measure(func() {
			f()
			synctest.Wait() // for the goroutines of listeners, which come and go
		})
		return step{name, opened - wasOpened, s.outside.looked - looked, w, linear}
	}
	bystander := func() step {
		return measure("a bystander", 1, func() {
			for n := range 8 {
				web := withVIPs("bystander", 9999, []string{"192.0.2.1"})
				web.HealthCheck.LocalEndpoints.IPv4 = 1 + n
				s.SetService(web)
				sync()
			}
		})
	}
	bystander()
	alone := bystander()
	do := func(name string, linear int, f func()) {
		steps = append(steps, measure(name, linear, func() {
			f()
			sync()
		}))
		now := bystander()
		assert.Zero(t, now.opened, "sockets of a bystander's change after %s", name)
		assert.Equal(t, alone.looked, now.looked, "addresses of a bystander's change after %s", name)
		assert.LessOrEqual(t, now.Bytes, alone.Bytes+8*1024, "bytes of a bystander's change after %s", name)
	}
	var services []*model.Service
	var all []netip.Addr
	var refused []error
	for i := range d[nServices] {
		web := d.service(i)
		services = append(services, web)
		all = append(all, slices.Concat(web.LoadBalancerIPs, web.ExternalIPs)...)
		for _, sp := range web.Ports {
			for _, f := range model.Families() {
				refused = append(refused, &sink.PortError{Port: web.PortName(sp), Family: f, Err: errors.New("refused")})
			}
		}
	}
	set := func() {
		for _, web := range services {
			s.SetService(web)
		}
	}
	items, own := d[nServices]*d.ofService(), d.ofService()
	do("coming", items, set)
	do("the host gets its addresses", items, func() { host = nodeaddr.Addresses{IPs: sorted(host.IPs, all...)} })
	do("other endpoints", own, func() {
		web := *services[0]
		web.HealthCheck = &model.HealthCheck{NodePort: 10000, LocalEndpoints: model.PerFamily[int]{IPv4: 7}}
		s.SetService(&web)
	})
	do("all ports are refused", items, func() { next.err = errors.Join(refused...) })
	do("and one of them is not", items, func() { next.err = errors.Join(refused[1:]...) })
	do("they are served", items, func() { next.err = nil })
	do("the host loses an address", items, func() {
		others := slices.DeleteFunc(slices.Clone(host.IPs), func(a netip.Addr) bool { return a == all[0] })
		host = nodeaddr.Addresses{IPs: others}
	})
	do("going", items, func() {
		for _, web := range services {
			s.DeleteService(web.Name)
		}
	})
	require.Empty(t, s.retries.take())
	return steps
}

func sorted(list []netip.Addr, more ...netip.Addr) []netip.Addr {
	all := slices.Concat(list, more)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// TestNoTenantCostsMoreThanItAsksFor doubles each dimension, and each pair of them. Only Services multiply the others,
// because the objects have that product, and a Service takes a few sockets whatever it has. Bytes get half as much
// again, because lists and maps grow in steps, and 512 for each item.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	size := 300
	if need.IsDeep() {
		size = 4000
	}
	for many := range numDimensions {
		for some := range numDimensions {
			d := demand{1, 2, 2, 2}
			d[some] = 8
			d[many] = size
			twice, factor := d, 2
			for i := range numDimensions {
				if i == many || i == some {
					twice[i] *= 2
				}
			}
			if many != some && (many == nServices || some == nServices) {
				factor = 4
			}
			t.Run(d.String(), func(t *testing.T) {
				var before, after []step
				synctest.Test(t, func(t *testing.T) { before, after = tenantSteps(t, d), tenantSteps(t, twice) })
				for i, b := range before {
					a := after[i]
					assert.LessOrEqual(t, a.opened, twice[nServices]*(1+healthcheck.MaxVIPs), "sockets: %s", b.name)
					assert.LessOrEqual(t, a.looked, factor*max(b.looked, 8*b.linear), "addresses: %s", b.name)
					assert.LessOrEqual(t, a.Bytes, factor*3/2*max(b.Bytes, 512*b.linear), "bytes: %s", b.name)
				}
			})
		}
	}
}
