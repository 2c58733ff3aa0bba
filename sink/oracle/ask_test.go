package oracle

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// named sets the pod and the node of an endpoint.
func named(ep *model.Endpoint, pod, node string) *model.Endpoint {
	ep.Node = node
	ref := model.TargetRef{Kind: "Pod", Namespace: "default", Name: pod}
	ep.Details = model.NewDetails(model.EndpointDetails{TargetRef: ref})
	return ep
}

func TestAsk(t *testing.T) {
	pods := func(f *fixture) {
		f.setEndpoints(named(local(localPod, cluster|locally), "web-1", "n1"),
			named(remote(remotePod, cluster), "web-2", "n2"),
			named(local(nodeIP2, cluster), "web-3", "n1"))
	}
	podCIDRs := func(f *fixture) { f.node.PodCIDRs = []netip.Prefix{prefix("10.244.1.0/24")} }
	tests := []struct {
		name     string
		change   func(*fixture)
		question string
		flow     string
		note     string // part of the only one
	}{
		{"a pod by name", pods, "pod default/web-1 -> 10.96.0.10:80/TCP", "local pod 10.244.1.5 -> 10.96.0.10:80/TCP",
			""},
		{"TCP goes without saying", pods, "pod default/web-1->10.96.0.10:80",
			"local pod 10.244.1.5 -> 10.96.0.10:80/TCP", ""},
		{"small letters will do", pods, "pod default/web-1 ->10.96.0.10:80/udp",
			"local pod 10.244.1.5 -> 10.96.0.10:80/UDP", ""},
		{"a pod of another node by name", pods, "pod default/web-2 -> 10.96.0.10:80/TCP",
			"remote pod 10.244.2.5 -> 10.96.0.10:80/TCP", "the pod is on node n2"},
		{"a pod in the host's network", pods, "pod default/web-3 -> 10.96.0.10:80/TCP",
			"node 192.168.9.2 -> 10.96.0.10:80/TCP", "host's network"},
		{"an endpoint by address", pods, "pod 10.244.2.5 -> 10.96.0.10:80/TCP",
			"remote pod 10.244.2.5 -> 10.96.0.10:80/TCP", "the pod is on node n2"},
		{"an endpoint of no known node", nil, "pod 10.244.2.5 -> 10.96.0.10:80/TCP",
			"remote pod 10.244.2.5 -> 10.96.0.10:80/TCP", "the pod is on another node"},
		{"a pod that is no endpoint, of this node", podCIDRs, "pod 10.244.1.77 -> 10.96.0.10:80/TCP",
			"local pod 10.244.1.77 -> 10.96.0.10:80/TCP", ""},
		{"a pod that is no endpoint, of another node", podCIDRs, "pod 10.244.9.77 -> 10.96.0.10:80/TCP",
			"remote pod 10.244.9.77 -> 10.96.0.10:80/TCP", "not in the pod CIDRs of this node"},
		{"a pod of which nothing is known", nil, "pod 10.244.9.77 -> 10.96.0.10:80/TCP",
			"local pod 10.244.9.77 -> 10.96.0.10:80/TCP", "10.244.9.77 is unknown"},
		{"a pod that is said to be local", pods, "local  pod 10.244.2.5 -> 10.96.0.10:80/TCP",
			"local pod 10.244.2.5 -> 10.96.0.10:80/TCP", ""},
		{"a pod that is said to be remote", pods, "remote pod 10.244.1.5 -> 10.96.0.10:80/TCP",
			"remote pod 10.244.1.5 -> 10.96.0.10:80/TCP", ""},
		{"the node", nil, "node -> 10.96.0.10:80/TCP", "node 172.18.0.2 -> 10.96.0.10:80/TCP", ""},
		{"the node, IPv6", nil, "node -> [fd96::10]:80/TCP", "node fd18::2 -> [fd96::10]:80/TCP", ""},
		{"the node to itself", nil, "node -> 127.0.0.1:30080", "node 127.0.0.1 -> 127.0.0.1:30080/TCP", ""},
		{"another address of the node", nil, "node 192.168.9.2 -> 10.96.0.10:80",
			"node 192.168.9.2 -> 10.96.0.10:80/TCP", ""},
		{"somebody outside", nil, "outside 203.0.113.7 -> 10.96.0.10:80", "external 203.0.113.7 -> 10.96.0.10:80/TCP",
			""},
		{"as flows are printed", nil, "external 203.0.113.7 -> 10.96.0.10:80/TCP",
			"external 203.0.113.7 -> 10.96.0.10:80/TCP", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			f.service.SessionAffinityTimeout = time.Hour
			if tt.change != nil {
				tt.change(f)
			}
			o := f.oracle(t)
			a, err := o.Ask(tt.question)
			require.NoError(t, err)
			assert.Equal(t, tt.flow, a.Outcome.Flow.String())
			want, err := o.Expect(flow(t, tt.flow))
			require.NoError(t, err)
			assert.Equal(t, want, a.Outcome)
			if tt.note == "" {
				assert.Empty(t, a.Notes)
			} else if assert.Len(t, a.Notes, 1) {
				assert.Contains(t, a.Notes[0], tt.note)
			}

			var back Answer
			text, err := json.Marshal(a)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &back))
			assert.Equal(t, a, &back, "%s", text)
		})
	}
}

func TestQuestionsThatAreNone(t *testing.T) {
	f := newFixture()
	f.setEndpoints(named(local(localPod, cluster|locally), "web-1", "n1"), remote(remotePod, cluster))
	o := f.oracle(t)
	for question, want := range map[string]string{
		"":                                      "not of the form",
		"pod 10.244.1.5 10.96.0.10":             "not of the form",
		"pod 10.244.1.5 -> 10.96.0.10":          "the destination is not ADDRESS:PORT",
		"pod 10.244.1.5 -> 10.96.0.10:0":        "destination 10.96.0.10:0 is not valid",
		"pod 10.244.1.5 -> 10.96.0.10:80/ICMP":  "ICMP",
		"pod 10.244.1.5 -> [fd96::10]:80":       "different families",
		"pod -> 10.96.0.10:80":                  "named by its address or by NAMESPACE/NAME",
		"pod default/ -> 10.96.0.10:80":         "not the NAMESPACE/NAME",
		"pod default/web-9 -> 10.96.0.10:80":    "pod default/web-9 is not among the endpoints that this node uses",
		"pod default/web-1 -> [fd96::10]:80":    "pod default/web-1 has no IPv6 address",
		"local web -> 10.96.0.10:80":            "local pod ADDRESS",
		"node web -> 10.96.0.10:80":             "the source has no address",
		"outside -> 10.96.0.10:80":              "needs an address",
		"somebody 203.0.113.7 -> 10.96.0.10:80": "not one of pod, local pod, remote pod, node, outside",
		"outside 203.0.113.7 -> <script>:80":    "the destination is not ADDRESS:PORT",
	} {
		_, err := o.Ask(question)
		assert.ErrorContains(t, err, want, question)
	}

	_, err := newFixture().oracle(t).Ask("pod default/web-1 -> 10.96.0.10:80")
	assert.ErrorContains(t, err, "pod names are not known here")

	without := newFixture()
	without.node.IPs = without.node.IPs[:1]
	_, err = without.oracle(t).Ask("node -> [fd96::10]:80")
	assert.ErrorContains(t, err, "the node has no IPv6 address")
}

// Every reason that follows a rule names it, so that a person can look it up.
func TestAnswersNameTheRules(t *testing.T) {
	f := newFixture()
	f.setEndpoints(named(local(localPod, cluster|locally), "web-1", "n1"),
		named(remote(remotePod, cluster), "web-2", "n2"))
	a, err := f.oracle(t).Ask("pod default/web-1 -> 10.96.0.10:80/TCP")
	require.NoError(t, err)
	var rules []string
	for _, r := range a.Outcome.Reasons {
		rules = append(rules, r.Rule)
	}
	assert.Equal(t, []string{"S3", "S21", "S28", "S30", "S29"}, rules)
	assert.Equal(t, []Destination{
		{Endpoint: netip.MustParseAddrPort(localPod + ":8080"), SourceNAT: true, Node: "n1", Pod: "default/web-1"},
		{Endpoint: netip.MustParseAddrPort(remotePod + ":8080"), Node: "n2", Pod: "default/web-2"},
	}, a.Outcome.Endpoints)
}
