package frontend

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// onNode is an address and port that both services of nodePortRig want: one has the node port of that number, the other
// one has the node's address as an external IP.
const onNode = "192.0.2.1:30080/TCP"

func inYear(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }

func withNodePort(name string, year int) *model.Service {
	return fakemodel.Service(name).Port("http", 80).NodePort(30080).UID(name).Created(inYear(year)).Build()
}

func withNodeAddress(name string, year int) *model.Service {
	return fakemodel.Service(name).Port("http", 30080).ExternalIP("192.0.2.1").UID(name).Created(inYear(year)).Build()
}

func newNodePortRig(t *testing.T, services ...*model.Service) *rig {
	r := newRig(t)
	r.nodeAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	for _, s := range services {
		r.set(s)
		r.sync(t)
	}
	return r
}

func TestANodePortKeepsTheNodesAddress(t *testing.T) {
	r := newNodePortRig(t, withNodePort("prod/web", 2025), withNodeAddress("evil/x", 2001))
	assert.Empty(t, r.v4.owner(onNode), "nobody has a frontend there: the node port is served")
	assert.Equal(t, "prod/web", r.v4.owner("node port 30080/TCP"))
	http := func(namespace, name string) model.PortName {
		return model.PortName{Service: model.ServiceName{Namespace: namespace, Name: name}, Port: "http",
			Protocol: model.TCP}
	}
	assert.Equal(t, []Problem{{Family: model.IPv4, Port: http("evil", "x"), Reason: AddressInUse,
		Owner: http("prod", "web"), Message: onNode + " belongs to prod/web:http/TCP"}}, r.problems)

	r.DeleteService(model.ServiceName{Namespace: "prod", Name: "web"})
	r.sync(t)
	assert.Equal(t, "evil/x", r.v4.owner(onNode), "it gets the address when the node port goes")
}

func TestAnExternalIPKeepsTheNodesAddress(t *testing.T) {
	r := newNodePortRig(t, withNodeAddress("prod/web", 2025), withNodePort("evil/x", 2001))
	assert.Equal(t, "prod/web", r.v4.owner(onNode))
	assert.Equal(t, "evil/x", r.v4.owner("node port 30080/TCP"), "it is served on the node's other addresses")
	if assert.Len(t, r.problems, 1) {
		assert.Equal(t, "evil", r.problems[0].Port.Service.Namespace)
		assert.Equal(t, onNode+" belongs to prod/web:http/TCP", r.problems[0].Message)
	}
}

func TestTheOlderOfANodePortAndAnExternalIPIsFirstAfterARestart(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		for years, owner := range map[[2]int]string{{2001, 2025}: "", {2025, 2001}: "b/x", {2025, 2025}: "b/x"} {
			r := newNodePortRig(t)
			services := []*model.Service{withNodePort("a/x", years[0]), withNodeAddress("b/x", years[1])}
			r.set(services[order[0]], services[order[1]])
			r.sync(t)
			assert.Equal(t, owner, r.v4.owner(onNode), "%v", years)
		}
	}
}

func TestNodePortsFollowTheAddressesOfTheNode(t *testing.T) {
	r := newNodePortRig(t, withNodePort("prod/web", 2001))
	addrs := r.nodeAddrs
	r.nodeAddrs = addrs[1:]
	r.set(withNodeAddress("other/x", 2025))
	r.sync(t)
	assert.Equal(t, "other/x", r.v4.owner(onNode), "it is no address of the node")
	assert.Empty(t, r.problems)

	r.nodeAddrs = addrs
	r.sync(t)
	assert.Equal(t, "other/x", r.v4.owner(onNode), "it had the address before")
	assert.Len(t, r.problems, 1)

	r.DeleteService(model.ServiceName{Namespace: "other", Name: "x"})
	r.sync(t)
	r.set(withNodeAddress("other/x", 2025))
	r.sync(t)
	assert.Empty(t, r.v4.owner(onNode), "the node port was served there")

	r.nodeAddrs = addrs[1:]
	r.sync(t)
	assert.Equal(t, "other/x", r.v4.owner(onNode), "the node has lost the address")
}

// The port list of one service may have both: the external IP comes first, as it is no dispute.
func TestAServicePortMayHaveBothTheNodePortAndTheAddress(t *testing.T) {
	r := newNodePortRig(t, fakemodel.Service("a/x").Port("http", 30080).NodePort(30080).ExternalIP("192.0.2.1").Build())
	assert.Equal(t, "a/x", r.v4.owner(onNode))
	assert.Empty(t, r.problems)
}
