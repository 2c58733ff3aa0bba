package backendtest

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Setter receives the state: a backend, or a model that is handed to one later.
type Setter interface {
	SetNode(*model.Node)
	SetService(*model.Service)
	DeleteService(model.ServiceName)
	SetEndpoint(*model.Endpoint)
	DeleteEndpoint(model.EndpointKey)
}

// Backend is a backend to test.
type Backend interface {
	Setter
	Sync(context.Context) error
	CleanUp(context.Context) error
	Close() error
}

// Set sets nodes, services and endpoints.
func Set(t testing.TB, d Setter, values ...any) {
	t.Helper()
	for _, v := range values {
		switch v := v.(type) {
		case *model.Node:
			d.SetNode(v)
		case *model.Service:
			d.SetService(v)
		case *model.Endpoint:
			d.SetEndpoint(v)
		default:
			t.Fatalf("cannot set a %T", v)
		}
	}
}

// Node is a node with addresses and pods of both families.
func Node() *model.Node {
	return &model.Node{
		Name:         "n1",
		IPs:          []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/108")},
		LocalPods: model.LocalPods{
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")}},
	}
}

// Number returns the number in an environment variable, or otherwise if it is not set.
func Number(t testing.TB, variable string, otherwise int) int {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}
