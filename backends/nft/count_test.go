package nft_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// counted are two services: one with addresses of both families and a node port, and one whose external IP the first
// owns.
func counted() []any {
	web := fm.Service("shop/web").ClusterIP("10.96.0.1", "fd00:96::1").ExternalIP("203.0.113.1").
		Port("http", 80).NodePort(30080).Build()
	thief := fm.Service("shop/zz").ClusterIP("10.96.0.2").ExternalIP("203.0.113.1").Port("http", 80).Build()
	return []any{fm.Node("n1").IP("192.0.2.10").Build(), web, thief,
		fm.Endpoint("shop/web:http/TCP", "10.1.2.3:8080").Build(), fm.Endpoint("shop/zz:http/TCP", "10.1.2.4:8080").Build()}
}

// count counts connections as the kernel would.
func (r *rig) count(f model.Family, set, address string, port uint16, packets uint64) {
	r.t.Helper()
	var a netip.Addr
	if address != "" {
		a = netip.MustParseAddr(address)
	}
	require.NoError(r.t, r.fake.Count(dataplane.TableKey{Family: f, Name: nft.DefaultTableName}, set,
		rules.Key(a, model.TCP, port), packets))
}

func (r *rig) traffic() map[model.ServiceName]sink.Traffic {
	r.t.Helper()
	traffic, err := r.backend.CountTraffic(r.t.Context())
	require.NoError(r.t, err)
	return traffic
}

// The connections to all addresses of a service, in both families, are counted for the service that they go to.
func TestConnectionsAreCountedByService(t *testing.T) {
	web, other := model.ServiceName{Namespace: "shop", Name: "web"}, model.ServiceName{Namespace: "shop", Name: "zz"}
	r := newRig(t, nft.Options{CountConnections: true})
	assert.Empty(t, r.traffic(), "nothing is applied yet")
	r.Set(counted()...)
	r.Sync()
	r.count(model.IPv4, "service-ips", "10.96.0.1", 80, 1)
	r.count(model.IPv4, "service-ips", "203.0.113.1", 80, 10)
	r.count(model.IPv6, "service-ips", "fd00:96::1", 80, 100)
	r.count(model.IPv4, "nodeports", "", 30080, 1000)
	r.count(model.IPv4, "service-ips", "10.96.0.2", 80, 5)
	want := map[model.ServiceName]sink.Traffic{web: {Connections: 1111}, other: {Connections: 5}}
	assert.Equal(t, want, r.traffic())

	r.Restart()
	r.Sync()
	assert.Equal(t, want, r.traffic(), "a process that takes over goes on counting")

	// An element of another program, which is about no service, counts for none.
	foreign := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
	ips := rules.ServiceIPs()
	ips.Counted = true
	foreign.AddElements(ips, dataplane.Element{Key: rules.Key(netip.MustParseAddr("10.96.0.9"), model.TCP, 80),
		Value: "cluster-1"})
	require.NoError(t, r.fake.ApplyUnnoticed(foreign))
	r.count(model.IPv4, "service-ips", "10.96.0.9", 80, 7)
	assert.Equal(t, want, r.traffic())

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.backend.CountTraffic(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, r.backend.CleanUp(t.Context()))
	assert.Empty(t, r.traffic())
}

// Without the option nothing is counted, and nothing of it is in the tables.
func TestNothingIsCountedUnlessItIsAskedFor(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(counted()...)
	r.Sync()
	assert.Nil(t, r.traffic())
	assert.NotContains(t, r.dumps(), "counter")
}

// A process with the option replaces the tables of one without, in one transaction, and the other way round.
func TestCountersAreSwitchedOnAndOffWithoutAGap(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(counted()...)
	r.Sync()
	before := r.dumps()
	logged := ""
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { logged += args + "\n" }, funcr.Options{}))
	reasons := map[bool]string{true: "are counted from now on", false: "are no longer counted"}
	for _, on := range []bool{true, false} {
		r.options.CountConnections = on
		r.Restart()
		r.applied, logged = nil, ""
		require.NoError(t, r.Wave(ctx))
		require.Len(t, r.applied, 2, "one for each family")
		assert.Equal(t, on, strings.Contains(r.dumps(), "\t\tcounter\n"))
		assert.Equal(t, 2, strings.Count(logged, reasons[on]+" (CountConnections)"), logged)
	}
	assert.Equal(t, before, r.dumps())
}

func TestAKernelThatDoesNotCountIsAnError(t *testing.T) {
	r := newRig(t, nft.Options{CountConnections: true})
	r.Set(counted()...)
	r.Sync()
	o := r.options
	o.Dataplane = deaf{r.fake}
	b, err := nft.New(t.Context(), o)
	require.NoError(t, err)
	defer b.Close()
	_, err = b.CountTraffic(t.Context())
	require.EqualError(t, err, "nft: out of memory")
}

// deaf is a dataplane that cannot be asked.
type deaf struct{ *dataplane.Fake }

func (deaf) Counters(context.Context, dataplane.TableKey, *dataplane.Set) (map[string]uint64, error) {
	return nil, errors.New("out of memory")
}
