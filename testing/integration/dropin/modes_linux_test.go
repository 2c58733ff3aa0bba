package dropin_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// proxyIn is a proxy that runs in some mode, and how to tell that its rules exist.
type proxyIn struct {
	name     string
	upstream bool // Kubernetes' own kube-proxy
	mode     string
	trace    string // a text in the rules of this one only
}

// rulesOf has a text that the rules of each mode contain.
var rulesOf = map[string]string{"nftables": " kube-proxy-lib {", "iptables": "KPL-"}

// TestAnotherModeTakesOverWithoutOneFailedConnection switches from each mode to each other one, and from Kubernetes'
// own kube-proxy to each (S50).
func TestAnotherModeTakesOverWithoutOneFailedConnection(t *testing.T) {
	from := []proxyIn{
		{"kube-proxy in mode nftables", true, "nftables", " kube-proxy {"},
		{"kube-proxy in mode iptables", true, "iptables", "KUBE-S"},
		// chains of services and endpoints: the kubelet's stay
	}
	for _, mode := range modes {
		from = append(from, proxyIn{"mode " + mode, false, mode, rulesOf[mode]})
	}
	for _, old := range from {
		for _, mode := range modes {
			if !old.upstream && old.mode == mode {
				continue
			}
			t.Run(old.name+" to mode "+mode, func(t *testing.T) {
				t.Parallel()
				l := newLab(t, cluster.Options{})
				need.Program(t, "iptables-nft-save")
				b := newBusy(l)
				l.setEndpoints("busy", endpoint{l.newPod("a"), nodeName}, endpoint{l.newPod("b"), otherNode})
				kubeconfig := l.AdminKubeconfig(l.relay.Port)
				var p *program
				if old.upstream {
					p = l.run(nil, cluster.Program(t, "kube-proxy"), l.flags(old.mode, kubeconfig)...)
				} else {
					p = l.start(l.flags(old.mode, kubeconfig)...)
				}
				b.awaitAnswers()
				b.awaitApplied()
				assert.Contains(t, l.rules(), old.trace)
				b.startClients()
				p.kill()

				p = l.start(l.flags(mode, kubeconfig)...)
				b.awaitApplied()
				for range 10 {
					b.load.more(20)
				}
				assert.Contains(t, l.rules(), rulesOf[mode])
				assert.NotContains(t, l.rules(), old.trace, "what the other one left")
				p.terminate()
				b.load.assertNoFailure()
			})
		}
	}
}
