package mynft

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// offline is the backend without its kernel.
type offline struct {
	*Backend
	rules string
}

func (o *offline) Sync(context.Context) error {
	o.rules = o.ruleset()
	return nil
}

func TestAServiceWithoutEndpointsIsRejectedUntilOneComes(t *testing.T) {
	b := &offline{Backend: New([]netip.Addr{netip.MustParseAddr("172.18.0.2")})}
	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return b }})

	d.Set(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	d.Sync()
	assert.Contains(t, b.rules, "ip daddr 10.96.0.10 tcp dport 80 reject")

	d.Set(fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build())
	d.Sync()
	assert.NotContains(t, b.rules, "reject")
	assert.Contains(t, b.rules, "ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.244.1.5:8080")
	assert.Equal(t, 1, strings.Count(b.rules, "dnat ip to"))
}
