package dropin_test

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// busy is a service that many clients use all the time, in both families: pods by its cluster IP, a client outside the
// cluster by node port and VIP.
type busy struct {
	*lab
	load     *load
	made     int // services to see what is applied
	asking   *pod
	clusters [2]string // the cluster IPs
}

const busyNodePort = 30090

// addresses are those that the clients connect to, by family.
func (b *busy) addresses(i int) (cluster, nodePort, vip string) {
	vips := [2]string{"198.51.100.20", "2001:db8:1b::20"}
	return net.JoinHostPort(b.clusters[i], "80"), net.JoinHostPort(nodeIPs[i], strconv.Itoa(busyNodePort)),
		net.JoinHostPort(vips[i], "80")
}

// newBusy makes the service "busy". There are no clients yet.
func newBusy(l *lab, with ...func(*corev1.Service)) *busy {
	b := &busy{lab: l, asking: l.newPod("asking")}
	b.clusters = l.service("busy",
		append(with, loadBalancer(busyNodePort, [2]string{"198.51.100.20", "2001:db8:1b::20"}))...)
	return b
}

// threePods returns pods that may become endpoints, the second one on the other node.
func (b *busy) threePods() (here, there, alsoHere endpoint) {
	return endpoint{b.newPod("a"), nodeName}, endpoint{b.newPod("c"), otherNode}, endpoint{b.newPod("d"), nodeName}
}

// awaitPod waits until a pod answers for the service, at all of its addresses.
func (b *busy) awaitPod(name string) {
	b.t.Helper()
	b.awaitAt(name+" answers", func(r reply, err error) bool { return err == nil && r.pod == name })
}

// awaitAnswers waits until any pod answers.
func (b *busy) awaitAnswers() {
	b.t.Helper()
	b.awaitAt("a pod answers", func(_ reply, err error) bool { return err == nil })
}

func (b *busy) awaitAt(what string, ok func(reply, error) bool) {
	b.t.Helper()
	for i := range families {
		cluster, nodePort, vip := b.addresses(i)
		for _, address := range []string{cluster, nodePort, vip} {
			await(b.t, what, b.client, address, ok)
		}
	}
}

// startClients lets the clients begin. The service must be applied.
func (b *busy) startClients() {
	b.load = newLoad(b.t)
	for i, family := range families {
		cluster, nodePort, vip := b.addresses(i)
		for _, n := range []string{"1", "2"} {
			b.load.client(family+" pod "+n, b.asking.ns, cluster, nodePort)
			b.load.client(family+" outside "+n, b.client, nodePort, vip, cluster)
		}
	}
	b.load.more(20)
}

// startUnderLoad starts the proxy, and the clients as soon as the service is applied.
func (b *busy) startUnderLoad(mode string, endpoints ...endpoint) (flags []string, p *program) {
	b.setEndpoints("busy", endpoints...)
	flags = b.flags(mode, b.AdminKubeconfig(b.relay.Port))
	p = b.start(flags...)
	b.awaitPod(endpoints[0].name)
	b.startClients()
	return flags, p
}

// takePods returns how many connections each pod has got since the last call.
func (l *load) takePods() map[string]int {
	pods := map[string]int{}
	for _, c := range l.started {
		c.mu.Lock()
		for name, n := range c.pods {
			pods[name] += n
		}
		clear(c.pods)
		c.mu.Unlock()
	}
	return pods
}

func TestKilledAndRestartedWithoutOneFailedConnection(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newBusy(newLab(t, cluster.Options{}))
			a, c, d := b.threePods()
			flags, p := b.startUnderLoad(mode, a, c)

			// Without changes.
			for range 3 {
				p.kill()
				b.load.more(20)
				p = b.start(flags...)
				b.awaitApplied()
				b.load.more(20)
			}

			// With changes meanwhile: one endpoint is added, another one removed, which still serves clients.
			p.kill()
			b.setEndpoints("busy", a, d)
			b.load.more(20)
			p = b.start(flags...)
			b.awaitPod("d")
			b.awaitApplied()
			b.load.takePods()
			b.load.more(20)
			pods := b.load.takePods()
			assert.NotContains(t, pods, "c", "it is no endpoint any more")
			assert.Contains(t, pods, "d")

			// Killed at any point of its start.
			for n := range 5 {
				p.kill()
				p = b.start(flags...)
				b.load.more(int64(2 * n))
			}
			b.awaitApplied()
			p.terminate()
			b.load.more(20)
			b.load.assertNoFailure()
		})
	}
}

// TestWithoutAnAPIServerTrafficGoesOn cuts the node off from the API server, restarts the proxy meanwhile, and
// reconnects it.
func TestWithoutAnAPIServerTrafficGoesOn(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newBusy(newLab(t, cluster.Options{}))
			a, c, d := b.threePods()
			flags, p := b.startUnderLoad(mode, a, c)

			// Disconnected, with changes meanwhile: the pod that is no longer an endpoint still serves.
			b.relay.Refuse()
			b.setEndpoints("busy", a, d)
			b.load.more(20)
			b.relay.Restore()
			b.awaitPod("d")
			b.load.more(20)

			// Disconnected while the proxy restarts: the rules stay, although the new process knows no service.
			b.relay.Refuse()
			b.setEndpoints("busy", c, d)
			p.kill()
			p = b.start(flags...)
			p.awaitLog("that it finds no API server",
				func(log string) bool { return strings.Contains(log, "connection refused") })
			b.load.takePods()
			b.load.more(20)
			pods := b.load.takePods()
			assert.Contains(t, pods, "a")
			assert.Contains(t, pods, "d")
			b.relay.Restore()
			b.awaitPod("c")
			b.awaitApplied()
			b.load.takePods()
			b.load.more(20)
			assert.NotContains(t, b.load.takePods(), "a", "it is no endpoint any more")
			p.terminate()
			b.load.assertNoFailure()
		})
	}
}

// awaitApplied makes a new service and waits until it works: then everything before it is applied, too.
func (b *busy) awaitApplied() {
	b.t.Helper()
	b.made++
	name := "new-" + strconv.Itoa(b.made)
	ips := b.service(name)
	b.setEndpoints(name, endpoint{b.asking, nodeName})
	for i := range families {
		await(b.t, name+" works", b.client, net.JoinHostPort(ips[i], "80"),
			func(_ reply, err error) bool { return err == nil })
	}
}
