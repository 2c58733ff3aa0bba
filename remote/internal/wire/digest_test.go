package wire

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
)

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
