package oracle

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAffinity(t *testing.T) {
	const hour = time.Hour
	toLocal, toRemote := netip.MustParseAddrPort(localPod+":8080"), netip.MustParseAddrPort(remotePod+":8080")
	tests := []struct {
		name    string
		change  func(*fixture)
		timeout time.Duration
		flow    string
		earlier []Connection
		want    string
	}{
		{"without affinity an earlier connection means nothing", nil, 0, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			[]Connection{{toLocal, 0}}, deliver(localPod, remotePod)},
		{"a new client goes anywhere", nil, hour, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			nil, deliver(localPod, remotePod)},
		{"a client stays with its endpoint", nil, hour, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			[]Connection{{toRemote, hour - 1}}, deliver(remotePod)},
		{"a client stays with its endpoint at the node port", nil, hour, "external 203.0.113.7 -> 172.18.0.2:30080/TCP",
			[]Connection{{toLocal, time.Second}}, deliver(localPod + "!")},
		{"when the timeout is over it goes anywhere", nil, hour, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			[]Connection{{toRemote, hour}}, deliver(localPod, remotePod)},
		{"when the endpoint is gone it goes to another",
			func(f *fixture) { f.setEndpoints(local(localPod, cluster|locally)) }, hour,
			"local pod 10.244.1.9 -> 10.96.0.10:80/TCP", []Connection{{toRemote, time.Second}}, deliver(localPod)},
		{"an endpoint that is in no set any more is gone", func(f *fixture) {
			f.setEndpoints(local(localPod, cluster|locally), remote(remotePod, 0))
		}, hour, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP", []Connection{{toRemote, time.Second}}, deliver(localPod)},
		{"an endpoint of the cluster set does not hold where the route is local", externalLocal, hour,
			"external 203.0.113.7 -> 198.51.100.20:80/TCP", []Connection{{toRemote, time.Second}}, deliver(localPod)},
		{"of two endpoints that both hold, either will do", nil, hour, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			[]Connection{{toLocal, time.Minute}, {toRemote, time.Second}}, deliver(localPod, remotePod)},
		{"of two endpoints of which one has expired, the other", nil, hour, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			[]Connection{{toLocal, 2 * hour}, {toRemote, time.Second}}, deliver(remotePod)},
		{"no earlier connection makes an empty set deliver", nobody, hour, "local pod 10.244.1.9 -> 10.96.0.10:80/TCP",
			[]Connection{{toLocal, time.Second}}, "reject"},
		{"alternatives have affinity too", all(ranges("203.0.113.0/24"), func(f *fixture) {
			f.service.ExternalIPs = append(f.service.ExternalIPs, addr("198.51.100.20"))
		}), hour, "external 203.0.113.7 -> 198.51.100.20:80/TCP", []Connection{{toLocal, time.Second}},
			deliver(localPod+"!") + " | " + deliver(localPod+"!")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			f.service.SessionAffinityTimeout = tt.timeout
			if tt.change != nil {
				tt.change(f)
			}
			before, err := f.oracle(t).Expect(flow(t, tt.flow))
			require.NoError(t, err)
			assert.Equal(t, tt.timeout, before.AffinityTimeout)
			unchanged := brief(before)
			assert.Equal(t, tt.want, brief(before.After(tt.earlier...)))
			assert.Equal(t, unchanged, brief(before), "After must not change what it is called on")
		})
	}
}
