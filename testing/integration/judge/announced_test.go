package judge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/manifest"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// difference is what preflight prints.
type difference struct {
	Object, Destination, Before, After, Rule string
	Senders                                  []string
}

// announces reports whether a difference covers a failed flow. One with a destination covers that, for its kinds of
// sender. One without covers a service port if it says that the port is not served, or that other endpoints count for
// its Service; if it is of no Service, it covers what no Service has.
func (d difference) announces(result report.Result, f report.Failure) bool {
	if d.Destination == "" {
		owners := ownersOf(f)
		switch d.Rule {
		case "S4", "S26", "S32", "S59", "S60", "frontend.Limits": // the reasons for which parts are not served
			return slices.ContainsFunc(owners, func(o owner) bool { return o.port == d.Object })
		case "S3 to S5", "S17", "S22":
			return slices.ContainsFunc(owners, func(o owner) bool { return slices.Contains(o.objects, d.Object) })
		}
		return !strings.Contains(d.Object, "/") && len(owners) == 0 && slices.Contains(result.Rules, d.Rule)
	}
	senders := map[string]string{"from a pod of the node ": "a pod of this node", "from the node itself ": "the node",
		"from a pod of another node ": "a pod of another node", "from outside ": "outside"}
	for prefix, sender := range senders {
		if strings.HasPrefix(result.Case, prefix) {
			return d.Destination == f.Flow.Destination && strings.HasSuffix(d.Object, "/"+f.Flow.Protocol) &&
				slices.ContainsFunc(d.Senders, func(s string) bool { return strings.HasPrefix(s, sender) })
		}
	}
	return false
}

// owner is a service port that has the destination of a flow.
type owner struct {
	port    string   // as preflight prints it
	objects []string // what preflight calls its Service and its EndpointSlices
}

// ownersOf returns the service ports that have the destination of a failed flow. A node port has every address.
func ownersOf(f report.Failure) (all []owner) {
	to, err := netip.ParseAddrPort(f.Flow.Destination)
	if err != nil {
		return nil
	}
	slicesOf := map[string][]string{}
	var services []*corev1.Service
	for document, err := range manifest.Documents([]byte(lastObjects(f.Objects))) {
		if err != nil {
			continue
		}
		objects, _ := document.Objects(false)
		for _, o := range objects {
			switch o, _ := o.Decode(false); o := o.(type) {
			case *corev1.Service:
				services = append(services, o)
			case *discoveryv1.EndpointSlice:
				service := o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName]
				slicesOf[service] = append(slicesOf[service], "EndpointSlice "+o.Namespace+"/"+o.Name)
			}
		}
	}
	for _, s := range services {
		addresses := append(slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs), s.Spec.ClusterIP)
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			addresses = append(addresses, ingress.IP)
		}
		has := slices.ContainsFunc(addresses, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && a == to.Addr()
		})
		for _, p := range s.Spec.Ports {
			protocol := string(p.Protocol)
			if protocol == "" {
				protocol = "TCP"
			}
			if protocol != f.Flow.Protocol || (!has || p.Port != int32(to.Port())) && p.NodePort != int32(to.Port()) {
				continue
			}
			service := s.Namespace + "/" + s.Name
			name := service
			if p.Name != "" {
				name += ":" + p.Name
			}
			all = append(all, owner{name + "/" + protocol, append([]string{service, "Service " + service},
				slicesOf[service]...)})
		}
	}
	return all
}

// lastObjects returns the objects that a failure has at its end.
func lastObjects(objects string) string {
	if _, last, found := strings.Cut(objects, "# Then this, in place of it:\n"); found {
		return last
	}
	return objects
}

// A line of preflight covers the flows that it is about, and no others.
func TestALineCoversWhatItIsAbout(t *testing.T) {
	const objects = `
apiVersion: v1
kind: Service
metadata: {namespace: a, name: web}
spec:
  clusterIPs: [10.96.0.1]
  externalIPs: [203.0.113.1]
  ports: [{name: http, port: 80, nodePort: 30080}, {name: x, port: 81}]
---
apiVersion: v1
kind: Service
metadata: {namespace: a, name: web-2}
spec: {clusterIPs: [10.96.0.2], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: a, name: s, labels: {kubernetes.io/service-name: web}}
`
	at := func(destination string) report.Failure {
		return report.Failure{Objects: objects, Flow: &report.Flow{Destination: destination, Protocol: "TCP"}}
	}
	const outside = "from outside to an external IP"
	result := report.Result{Case: outside, Rules: []string{"S33", "S35"}}
	for _, test := range []struct {
		d    difference
		to   string
		want bool
	}{
		{difference{Object: "a/web:http/TCP", Rule: "S59"}, "203.0.113.1:80", true},
		{difference{Object: "a/web:http/TCP", Rule: "S59"}, "192.0.2.1:30080", true},
		{difference{Object: "a/web:http/TCP", Rule: "S59"}, "203.0.113.1:81", false},
		{difference{Object: "a/web:http/TCP", Rule: "S59"}, "10.96.0.2:80", false},
		{difference{Object: "a/web-2/TCP", Rule: "S60"}, "10.96.0.2:80", true},
		{difference{Object: "a/web", Rule: "S17"}, "10.96.0.1:81", true},
		{difference{Object: "a/web", Rule: "S17"}, "10.96.0.2:80", false},
		{difference{Object: "EndpointSlice a/s", Rule: "S22"}, "10.96.0.1:80", true},
		{difference{Object: "EndpointSlice a/s", Rule: "S22"}, "10.96.0.2:80", false},
		{difference{Object: "Service a/web", Rule: "S3 to S5"}, "10.96.0.1:80", true},
		{difference{Object: "a/web", Rule: "S35"}, "192.0.2.1:30080", false},
		{difference{Object: "ports of cluster IPs that no service has", Rule: "S33"}, "10.96.0.1:99", true},
		{difference{Object: "ports of cluster IPs that no service has", Rule: "S33"}, "10.96.0.1:80", false},
		{difference{Object: "how endpoints are chosen", Rule: "S57"}, "10.96.0.1:99", false},
		{difference{Object: "a/web:http/TCP", Destination: "203.0.113.1:80", Senders: []string{"outside"}, Rule: "S6"},
			"203.0.113.1:80", true},
		{difference{Object: "a/web:http/TCP", Destination: "203.0.113.1:80", Senders: []string{"the node"}, Rule: "S6"},
			"203.0.113.1:80", false},
	} {
		assert.Equal(t, test.want, test.d.announces(result, at(test.to)), "%+v", test)
	}
	require.Len(t, ownersOf(at("203.0.113.1:80")), 1)
}
