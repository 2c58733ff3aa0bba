package mynft

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestAServiceWithoutEndpointsIsRejectedUntilOneComes(t *testing.T) {
	b, err := New([]netip.Addr{netip.MustParseAddr("172.18.0.2")})
	require.NoError(t, err)
	rules := "" // of the last Sync, instead of a kernel
	b.load = func(_ context.Context, transaction string) error {
		rules += transaction
		return nil
	}
	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return b }})

	d.Set(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	d.Sync()
	assert.Contains(t, rules, "ip daddr 10.96.0.10 tcp dport 80 reject")

	rules = ""
	d.Set(fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build())
	d.Sync()
	assert.NotContains(t, rules, "reject")
	assert.Contains(t, rules, "ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.1.5:8080")
	assert.Equal(t, 1, strings.Count(rules, "dnat to"))
}
