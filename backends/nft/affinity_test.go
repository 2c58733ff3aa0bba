package nft_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// big is a service with many addresses and endpoints.
type big struct{ addresses, endpoints int }

func (b big) service() *model.Service {
	s := fm.Service("default/big").ClusterIP("10.96.0.1").Port("http", 80).NodePort(30080).DetectsLocalPods()
	for i := range b.addresses - 2 { // the cluster IP and the node port
		s.ExternalIP(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String())
	}
	return s.Build()
}

func (b big) endpoint(i int) *model.Endpoint {
	pod := netip.AddrFrom4([4]byte{10, 244, byte(2 + i>>8), byte(i)})
	return fm.Endpoint("default/big:http/TCP", netip.AddrPortFrom(pod, 8080).String()).Build()
}

func (b big) values() []any {
	values := []any{backendtest.Node(), b.service()}
	for i := range b.endpoints {
		values = append(values, b.endpoint(i))
	}
	return values
}

// slots counts the elements of all maps with slots.
func slots(dump string) int {
	return strings.Count(dump, " : 10.244.")
}

func TestSlotsAreNotMultipliedByAddresses(t *testing.T) {
	b := big{addresses: 100, endpoints: 200}
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	r.Set(b.values()...)
	r.Sync()
	assert.Equal(t, b.endpoints, slots(r.dump(model.IPv4)))
	verdicts := regexp.MustCompile(`comment "default/big:http/TCP" : goto (on-node-)?port-`)
	assert.Len(t, verdicts.FindAllString(r.dump(model.IPv4), -1), b.addresses)

	element := func(verb string, slot int, ep *model.Endpoint) string {
		return fmt.Sprintf(`%s element ip kube-proxy-lib port-endpoints { \d+ . %d : %v . 8080 }`,
			verb, slot, ep.Target.Addr())
	}
	rule := `flush chain ip kube-proxy-lib port-\S+-cluster\n` +
		`add rule ip kube-proxy-lib port-\S+-cluster meta l4proto tcp dnat ip to .* . ` +
		`numgen random mod %d map @port-endpoints\n`
	t.Run("an endpoint that is replaced is one element", func(t *testing.T) {
		r.Delete(b.endpoint(7))
		r.Set(b.endpoint(1007))
		r.Sync()
		come := b.endpoint(1007)
		assert.Regexp(t, "^"+element("delete", 7, come)+"\n"+element("add", 7, come)+"\ncommit\n$",
			joined(r.commands(model.IPv4)))
	})
	t.Run("one that comes is one rule more", func(t *testing.T) {
		r.Set(b.endpoint(1008))
		r.Sync()
		assert.Regexp(t, "^"+fmt.Sprintf(rule, 201)+element("add", 200, b.endpoint(1008))+"\ncommit\n$",
			joined(r.commands(model.IPv4)))
	})
	t.Run("the last one goes when nobody looks there any more", func(t *testing.T) {
		r.Delete(b.endpoint(1008))
		r.Sync()
		assert.Regexp(t, "^"+fmt.Sprintf(rule, 200)+"commit\n"+element("delete", 200, b.endpoint(1008))+"\ncommit\n$",
			joined(r.commands(model.IPv4)))
	})
}

func TestAPortGetsChainsOfItsOwnAndGivesThemUp(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	for _, b := range []big{{4, 200}, {4, 257}, {6, 200}, {4, 10}, {3, 0}, {200, 6}} {
		r.Delete(b.service().Name)
		for i := range 300 {
			r.Delete(b.endpoint(i))
		}
		r.Set(b.values()...)
		r.Sync()
		fresh := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
		fresh.Set(b.values()...)
		fresh.Sync()
		require.Equal(t, canonical(t, fresh.dump(model.IPv4)), canonical(t, r.dump(model.IPv4)), "%+v", b)
		assert.Equal(t, b.addresses*b.endpoints > 1024, strings.Contains(r.dump(model.IPv4), "chain port-"), "%+v", b)
	}
}

// Two backend sets never have the same number, whatever the names of their services are: those of these two have the
// same hash.
func TestBackendSetsHaveNumbersOfTheirOwn(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	r.Set(backendtest.Node())
	for i, name := range []string{"default/big-45878", "default/big-57331"} {
		r.Set(fm.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", 1+i)).Port("http", 80).Build())
		for j := range 1025 {
			pod := netip.AddrFrom4([4]byte{10, 244, byte(2 + j>>8), byte(j)})
			r.Set(fm.Endpoint(name+":http/TCP", netip.AddrPortFrom(pod, 8080).String()).Build())
		}
	}
	r.Sync() // the fake refuses elements with the same key
	assert.Equal(t, 2*1025, slots(r.dump(model.IPv4)))
	assert.Contains(t, r.dump(model.IPv4), "3615381477 . 1024 : ")
	assert.Contains(t, r.dump(model.IPv4), "3615381479 . 1024 : ",
		"the next one that is free: the one between is that of the local set")
}

// A service port with session affinity keeps its clients when it becomes too big for slots of its frontends.
func TestAPortWithAffinityGetsSlotsByNumberAndGivesThemUp(t *testing.T) {
	const name = "default/sticky"
	s := fm.Service(name).ClusterIP("10.96.0.1").Port("http", 80).NodePort(30080).Affinity(time.Hour).Build()
	endpoint := func(i int) *model.Endpoint {
		pod := netip.AddrFrom4([4]byte{10, 244, byte(2 + i>>8), byte(i)})
		return fm.Endpoint(name+":http/TCP", netip.AddrPortFrom(pod, 8080).String()).Build()
	}
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	r.Set(backendtest.Node(), s)
	for _, n := range []int{512, 513, 512} { // times two frontends
		fresh := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
		fresh.Set(backendtest.Node(), s)
		r.Delete(endpoint(512))
		for i := range n {
			r.Set(endpoint(i))
			fresh.Set(endpoint(i))
		}
		r.Sync()
		fresh.Sync()
		assert.NotContains(t, joined(r.commands(model.IPv4)), "delete set")
		assert.Equal(t, canonical(t, fresh.dump(model.IPv4)), canonical(t, r.dump(model.IPv4)))
		assert.Equal(t, n > 512, strings.Contains(r.dump(model.IPv4), "chain port-"))
		assert.Equal(t, map[bool]int{true: 513, false: 1024}[n > 512], slots(r.dump(model.IPv4)))
	}
}
