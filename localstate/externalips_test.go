package localstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func TestExternalIPsAreThoseThatAServiceLists(t *testing.T) {
	proxied := corev1.LoadBalancerIPModeProxy
	svc := &corev1.Service{}
	svc.Spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1", "none", "192.0.2.1"}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}, {Hostname: "lb.example.net"},
		{IP: "192.0.2.3", IPMode: &proxied}, {IP: "192.0.2.1"}}
	assert.Equal(t, "[192.0.2.1 192.0.2.2 2001:db8::1]", fmt.Sprint(ExternalIPs(svc)))
	assert.Empty(t, ExternalIPs(&corev1.Service{}))
}
