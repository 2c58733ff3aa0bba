package nft_test

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// strange is a service that the API server would not let through. Its name must not be able to do any harm.
func strange() []any {
	name := model.ServiceName{Namespace: "a\"b{\n}", Name: strings.Repeat("ä*long; ", 60)}
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true})
	service := func(port string, ip byte, timeout time.Duration) *model.Service {
		n := name
		n.Name += port
		return &model.Service{Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, ip})},
			Ports: []model.ServicePort{{Name: port, Protocol: model.TCP, Port: 80,
				Routes: model.PerFamily[model.Routes]{IPv4: routes}}},
			SessionAffinityTimeout: timeout}
	}
	values := []any{backendtest.Node()}
	for i, s := range []*model.Service{service("x", 1, 0), service("y", 2, time.Hour), service("z", 3, time.Hour)} {
		values = append(values, s, &model.Endpoint{Port: s.PortName(s.Ports[0]), Sets: model.ClusterSet,
			Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 80)})
	}
	return values
}

func TestNamesAreEscapedBoundedAndDistinct(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	r.Set(strange()...)
	r.Sync() // the fake refuses names and comments that nft cannot print
	dump := r.dump(model.IPv4)
	assert.Equal(t, 2, strings.Count(dump, "\tchain affinity-"),
		"the second and third service differ in the end of their names alone")
	for line := range strings.Lines(dump) {
		assert.Less(t, len(line), 600)
	}
}

func TestBadPortsAreSkippedAndTheRestGoesOn(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	values := strange()
	s := *values[1].(*model.Service)
	s.Ports = append([]model.ServicePort{{Name: "none",
		Routes: model.PerFamily[model.Routes]{IPv4: s.Ports[0].Routes.IPv4}}, s.Ports[0]}, s.Ports...)
	e := *values[2].(*model.Endpoint)
	e.Target = netip.AddrPortFrom(e.Target.Addr(), 0)
	for _, v := range append(values, &s, &e) { // as they are: what package fakemodel builds is checked
		switch v := v.(type) {
		case *model.Node:
			r.backend.SetNode(v)
		case *model.Service:
			r.backend.SetService(v)
		case *model.Endpoint:
			r.backend.SetEndpoint(v)
		}
	}
	require.NoError(t, r.backend.Sync(t.Context()))
	assert.Contains(t, r.dump(model.IPv4), "10.96.0.1 . tcp . 80 . 0 : 10.244.1.0 . 80")
	assert.NotContains(t, r.dump(model.IPv4), ". 0 :  . 0")
}

func TestATransactionThatIsTooBigForTheSocketIsDivided(t *testing.T) {
	r := newRig(t, nft.Options{})
	tooBig := 0
	limit := func(tx *dataplane.Transaction) error {
		if tx.Elements() > 5 || strings.Count(tx.Text(), "\n") > 20 {
			tooBig++
			return syscall.EMSGSIZE
		}
		return nil
	}
	r.fake.FailApply = limit
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	assert.Positive(t, tooBig)
	same := newRig(t, nft.Options{})
	same.Set(backendtest.EveryFeature()...)
	same.Sync()
	assert.Equal(t, same.dumps(), r.dumps())
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]nft.Options{
		"tableName":         {TableName: "no spaces"},
		"masqueradeMark":    {Common: frontend.Common{MasqueradeMark: 3}},
		"nodePortAddresses": {Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{{}}}}},
		"families":          {Common: frontend.Common{Families: []model.Family{model.IPv4, model.IPv4}}},
	} {
		_, err := nft.New(t.Context(), o)
		require.ErrorContains(t, err, name)
	}
	all := nft.Options{TableName: "{", Common: frontend.Common{Families: []model.Family{9}, MasqueradeMark: 5}}
	_, err := nft.New(t.Context(), all)
	for _, field := range []string{"tableName", "masqueradeMark", "families"} {
		require.ErrorContains(t, err, field)
	}
}
