package wire

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The cached digests are updated from change to change, and equal those computed without a cache.
func TestKnownDigestsAreThoseOfTheState(t *testing.T) {
	var state *sink.Snapshot
	full := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		state = s
		return nil
	})
	all := make([]uint32, NumBuckets)
	for i := range all {
		all[i] = uint32(i)
	}
	var known KnownDigests
	d := testkit.Seeded(1)
	states := []*sink.Snapshot{{}}
	for range 300 {
		name := model.ServiceName{Namespace: "ns", Name: fmt.Sprint(d.IntN(4))}
		e := &model.Endpoint{Port: model.PortName{Service: name, Protocol: model.TCP}, Ready: testkit.OneIn(d, 2),
			Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(d.IntN(9))}), 80)}
		switch d.IntN(6) {
		case 0:
			full.DeleteService(name)
		case 1, 2:
			full.SetService(&model.Service{Name: name, UID: fmt.Sprint(d.IntN(3))})
		case 3:
			full.DeleteEndpoint(e.Key())
		default:
			full.SetEndpoint(e)
		}
		_ = full.Sync(t.Context())
		states = append(states, state)
		asked := testkit.Pick(d, states...) // of clients that are served at the same time, some have older ones
		want := ServiceDigests(asked, all)
		require.Equal(t, want, known.ServiceDigests(asked, all))
		var sum Buckets
		for c := range asked.ChangesSince(nil) {
			sum.Change(c)
		}
		var root Digest
		for _, digest := range want {
			root = root.Add(digest)
		}
		require.Equal(t, sum.Root(), root)
	}
}

// TestDigestsOfAVersionStayTheSame: peers with the same DigestVersion compare digests, whatever release they are of.
func TestDigestsOfAVersionStayTheSame(t *testing.T) {
	assert.EqualValues(t, 1, DigestVersion, "which the digests below are of")
	name := model.ServiceName{Namespace: "ns", Name: "a"}
	service := &model.Service{Name: name, UID: "u", Type: model.ServiceTypeClusterIP,
		Labels:     map[string]string{"b": "2", "a": "1", "c": "\xff"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, TargetPort: "web"}}}
	endpoint := model.Endpoint{Port: model.PortName{Service: name, Port: "http", Protocol: model.TCP},
		Target: netip.MustParseAddrPort("10.1.0.1:8080"), Node: "n1", Sets: model.ClusterSet, Ready: true, Serving: true}
	detailed := endpoint
	detailed.Details = model.NewDetails(model.EndpointDetails{Hostname: "h", Zone: "z", ZoneHints: []string{"z"}})
	for _, c := range []struct {
		of   string
		got  Digest
		want string
	}{
		{"a service", serviceDigest(service), "872254a03448f60cceecfda7f9a82981"},
		{"an endpoint", endpointDigest(&endpoint), "bb7e29b9568762a852722538c2618cd4"},
		{"an endpoint with details", endpointDigest(&detailed), "244ac772c0fedb8ca4dd37d43a106d48"},
	} {
		assert.Equal(t, c.want, hex.EncodeToString(c.got.Bytes()), c.of)
	}
}
