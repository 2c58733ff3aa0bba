package dropin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// In mode ipvs nothing but a service's ports is taken at an address of another node, whether the Node or the service
// comes first.
func TestModeIPVSLeavesOtherNodesTheirAddresses(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, append(cluster(), kube.Node("n2").InternalIP("192.0.2.2", "2001:db8::2").Build(),
		kube.Service("default/ext").ClusterIP("10.96.0.20").Port("http", 80).
			ExternalIP("192.0.2.2").ExternalIP("192.0.2.3").Build())...)
	watching := r.watchesAllNodes()
	stop := r.start(t, "--proxy-mode=ipvs")
	await := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			dump := r.ipvs.Dump()
			for _, w := range want {
				if w, not := strings.CutPrefix(w, "not "); strings.Contains(dump, w) == not {
					return false
				}
			}
			return true
		}, time.Minute, time.Millisecond, "%v", want)
	}
	await("-A -t 192.0.2.2:80", "-A -t 192.0.2.3:80", "not address 192.0.2.2", "address 192.0.2.3", "deliver IPv4")

	<-watching
	nodes := r.client.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), kube.Node("n3").InternalIP("192.0.2.3").Build(), metav1.CreateOptions{})
	require.NoError(t, err)
	await("not address 192.0.2.3", "-A -t 192.0.2.3:80")
	require.NoError(t, nodes.Delete(t.Context(), "n2", metav1.DeleteOptions{}))
	await("address 192.0.2.2")
	require.NoError(t, stop())
	require.NoError(t, r.run("--cleanup"))
	assert.Empty(t, r.ipvs.Dump())
}

// Watching all Nodes is expensive in a big cluster: only mode ipvs does, and only with an external address.
func TestNobodyWatchesAllNodesWithoutNeed(t *testing.T) {
	needModesOfLinux(t)
	for mode, external := range map[string]bool{"--proxy-mode=ipvs": false, "--proxy-mode=nftables": true} {
		objects := cluster()
		if external {
			objects = append(objects,
				kube.Service("default/ext").ClusterIP("10.96.0.20").Port("http", 80).ExternalIP("192.0.2.2").Build())
		}
		r := newRig(t, objects...)
		ready := make(chan struct{})
		c, err := ParseCommand([]string{mode}, &strings.Builder{})
		require.NoError(t, err)
		c.Config.machine = r.machine
		c.Config.OnReady = func() { close(ready) }
		stop := r.startFunc(t, c.Run)
		<-ready
		require.NoError(t, stop())
		for _, a := range r.client.Actions() {
			if w, ok := a.(clienttesting.WatchAction); ok && a.GetResource().Resource == "nodes" {
				assert.Equal(t, "metadata.name=n1", w.GetWatchRestrictions().Fields.String(), mode)
			}
		}
	}
}

// Behind a brain the node is told which addresses are other nodes', whether the Node or the service comes first.
func TestModeIPVSBehindABrainLeavesOtherNodesTheirAddresses(t *testing.T) {
	needModesOfLinux(t)
	b := newBrain(t, append(cluster(), kube.Node("n2").InternalIP("192.0.2.2", "2001:db8::2").Build(),
		kube.Service("default/ext").ClusterIP("10.96.0.20").Port("http", 80).
			ExternalIP("192.0.2.2").ExternalIP("192.0.2.3").Build())...)
	b.start(t, brain.ServeOptions{})
	r := newBrainRig(t)
	ready := make(chan struct{})
	c, err := ParseCommand([]string{"--proxy-mode=ipvs", "--server=" + b.target, "--ipvs-min-sync-period=0"}, io.Discard)
	require.NoError(t, err)
	c.Config.machine = r.machine
	c.Config.OnReady = func() { close(ready) }
	stop := r.startFunc(t, c.Run)
	<-ready
	dump := r.ipvs.Dump()
	assert.NotContains(t, dump, "address 192.0.2.2", "it was never taken")
	assert.Contains(t, dump, "-A -t 192.0.2.2:80")
	assert.Contains(t, dump, "address 192.0.2.3")
	assert.NotContains(t, r.logged(), "Behind a brain the addresses of other nodes are not known")

	b.changes <- watch.Change{Object: kube.Node("n3").InternalIP("192.0.2.3").Build()}
	require.Eventually(t, func() bool { return !strings.Contains(r.ipvs.Dump(), "address 192.0.2.3") },
		time.Minute, time.Millisecond)
	b.changes <- watch.Change{Object: kube.Node("n2").Build(), Deleted: true}
	require.Eventually(t, func() bool { return strings.Contains(r.ipvs.Dump(), "address 192.0.2.2") },
		time.Minute, time.Millisecond)
	require.NoError(t, stop())
}

// A node that starts from its kept state takes only the services' ports until a brain has told it the other nodes.
func TestModeIPVSWithoutABrainLeavesOtherNodesTheirAddresses(t *testing.T) {
	needModesOfLinux(t)
	b := newBrain(t, append(cluster(), kube.Node("n2").InternalIP("192.0.2.2").Build(),
		kube.Service("default/ext").ClusterIP("10.96.0.20").Port("http", 80).
			ExternalIP("192.0.2.2").ExternalIP("192.0.2.3").Build())...)
	file := filepath.Join(t.TempDir(), "state")
	run := func() (*rig, func() error) {
		r := newBrainRig(t)
		ready := make(chan struct{})
		c, err := ParseCommand([]string{"--proxy-mode=ipvs", "--server=" + b.target, "--server-state-file=" + file,
			"--ipvs-min-sync-period=0"}, io.Discard)
		require.NoError(t, err)
		c.Config.machine = r.machine
		c.Config.Brain.Keep.After = 100 * time.Millisecond
		c.Config.OnReady = func() { close(ready) }
		stop := r.startFunc(t, c.Run)
		<-ready
		return r, stop
	}
	stopBrain := b.start(t, brain.ServeOptions{})
	_, stop := run()
	require.NoError(t, stop())
	stopBrain()
	r, stop := run()
	dump := r.ipvs.Dump()
	for _, a := range []string{"192.0.2.2", "192.0.2.3"} {
		assert.NotContains(t, dump, "address "+a, "it may be a node's")
		assert.Contains(t, dump, "-A -t "+a+":80")
	}
	b.start(t, brain.ServeOptions{})
	require.Eventually(t, func() bool { return strings.Contains(r.ipvs.Dump(), "address 192.0.2.3") },
		time.Minute, time.Millisecond)
	assert.NotContains(t, r.ipvs.Dump(), "address 192.0.2.2")
	assert.NotContains(t, r.logged(), "Behind a brain the addresses of other nodes are not known")
	require.NoError(t, stop())
}

// Nothing is known before a brain has been reached, and nothing is missing either.
func TestOtherNodesBehindABrain(t *testing.T) {
	r, reached := newRig(t), newReached()
	o, err := newOtherNodes(r.ctx, nil, nil, "n1", reached)
	require.NoError(t, err)
	text := func() string {
		list, known := o.Addresses()
		return fmt.Sprint(list, known)
	}
	const missing = "Behind a brain the addresses of other nodes are not known"
	require.Equal(t, "[] false", text())
	reached.setNodes(nil, true)
	<-o.Changed()
	require.Equal(t, "[] true", text())
	require.NotContains(t, r.logged(), missing)
	reached.setNodes(nil, false)
	<-o.Changed()
	require.Equal(t, "[] true", text(), "nothing waits for what does not come")
	text()
	require.Equal(t, 1, strings.Count(r.logged(), missing))
}

// The addresses of brains are never the node's own: without them it would have no state after that, and nothing would
// put it right. If a brain does not know the Nodes, the node is told what that means.
func TestModeIPVSBehindABrainLeavesTheBrainsTheirAddresses(t *testing.T) {
	needModesOfLinux(t)
	brains := newBrain(t, append(cluster(), kube.Service("default/ext").ClusterIP("10.96.0.20").Port("http", 80).
		ExternalIP("192.0.2.20").ExternalIP("2001:db8::20").ExternalIP("192.0.2.30").Build())...)
	brains.noNodes = true
	brains.start(t, brain.ServeOptions{})
	r, reached := newRig(t), newReached()
	r.machine.reached = reached
	c, err := ParseCommand([]string{"--proxy-mode=ipvs", "--server=" + brains.target}, io.Discard)
	require.NoError(t, err)
	c.Config.machine = r.machine
	c.Config.Brain.Insecure = true
	c.Config.Brain.Targets = append(c.Config.Brain.Targets, "192.0.2.20:10270", "[2001:db8::20]:10270",
		"file://"+t.TempDir())
	c.Config.Brain.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("away") }
	ready := make(chan struct{})
	c.Config.OnReady = func() { close(ready) }
	stop := r.startFunc(t, c.Run)
	<-ready
	dump := r.ipvs.Dump()
	assert.NotContains(t, dump, "address 192.0.2.20")
	assert.Contains(t, dump, "-A -t 192.0.2.20:80")
	assert.NotContains(t, dump, "address 2001:db8::20")
	assert.Contains(t, dump, "address 192.0.2.30")
	assert.Equal(t, 1, strings.Count(r.logged(), "Behind a brain the addresses of other nodes are not known"))

	// A brain is found by its name, and turns out to have the third address.
	reached.add(netip.MustParseAddr("192.0.2.30"))
	require.Eventually(t, func() bool { return !strings.Contains(r.ipvs.Dump(), "address 192.0.2.30") },
		time.Minute, time.Millisecond)
	require.NoError(t, stop())
}

func TestOtherNodesTellsWhatChangesOfAddresses(t *testing.T) {
	o, err := newOtherNodes(t.Context(), nil, fake.NewClientset(), "n1", newReached())
	require.NoError(t, err)
	o.begin = func() {}
	text := func() string {
		list, known := o.Addresses()
		return fmt.Sprint(list, known)
	}
	told := func() bool {
		select {
		case <-o.Changed():
			return true
		default:
			return false
		}
	}
	require.Equal(t, "[] false", text())
	two := kube.Node("n2").InternalIP("192.0.2.2", "2001:db8::2")
	o.Update(watch.Change{Object: kube.Node("n1").InternalIP("192.0.2.1").Build()})
	o.Update(watch.Change{Object: two.Build()})
	require.False(t, told(), "not all nodes are known")
	o.Synced()
	require.True(t, told())
	require.Equal(t, "[192.0.2.2 2001:db8::2] true", text(), "without this node's own")
	first, _ := o.Addresses()

	o.Update(watch.Change{Object: two.Zone("a").Build()})
	require.False(t, told(), "no address changes")
	o.Update(watch.Change{Object: kube.Node("n3").InternalIP("192.0.2.2").Build()})
	require.True(t, told())
	require.Equal(t, "[192.0.2.2 2001:db8::2] true", text(), "two nodes have one address")
	o.Update(watch.Change{Object: two.Build(), Deleted: true})
	require.True(t, told())
	require.Equal(t, "[192.0.2.2] true", text())
	require.Equal(t, "[192.0.2.2 2001:db8::2]", fmt.Sprint(first), "a list that was returned is never changed")

	// A watch that could not be resumed: what has gone meanwhile is gone.
	o.Update(watch.Change{Object: kube.Node("n4").InternalIP("192.0.2.4").Build()},
		watch.Change{Object: kube.Node("n3").Build(), Deleted: true})
	require.True(t, told())
	require.Equal(t, "[192.0.2.4] true", text())
}

// Behind a tunnel that drops the end of a streamed list, the nodes are known all the same.
func TestOtherNodesBehindATunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := apiserver.New()
		require.NoError(t, err)
		require.NoError(t, server.Set(kube.Node("n2").InternalIP("192.0.2.2").Build()))
		server.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault {
			return apiserver.Fault{NoEndOfList: true}
		})
		client, err := kubernetes.NewForConfig(server.Config())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		o, err := newOtherNodes(ctx, &wg, client, "n1", newReached())
		require.NoError(t, err)
		_, known := o.Addresses()
		require.False(t, known)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		list, known := o.Addresses()
		require.True(t, known)
		require.Equal(t, "[192.0.2.2]", fmt.Sprint(list))
		cancel()
		wg.Wait()
	})
}

// A server that cannot be reached for a while is not taken for such a tunnel.
func TestOtherNodesOfAServerThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := apiserver.New()
		require.NoError(t, err)
		require.NoError(t, server.Set(kube.Node("n2").InternalIP("192.0.2.2").Build()))
		server.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault {
			return apiserver.Fault{Err: os.ErrDeadlineExceeded}
		})
		client, err := kubernetes.NewForConfig(server.Config())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		o, err := newOtherNodes(ctx, &wg, client, "n1", newReached())
		require.NoError(t, err)
		o.Addresses()
		time.Sleep(10 * time.Minute)
		server.SetFaults(nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		_, known := o.Addresses()
		require.True(t, known)
		cancel()
		wg.Wait()
	})
}

// Without the permission to read Nodes nothing waits for them.
func TestWithoutPermissionNoNodeIsKnown(t *testing.T) {
	r := newRig(t)
	client := fake.NewClientset()
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	})
	ctx, cancel := context.WithCancel(r.ctx)
	var wg sync.WaitGroup
	o, err := newOtherNodes(ctx, &wg, client, "n1", newReached())
	require.NoError(t, err)
	o.Addresses()
	<-o.Changed()
	list, known := o.Addresses()
	require.Empty(t, list)
	require.True(t, known)
	cancel()
	wg.Wait()
	require.Contains(t, r.logged(), "Continuing as if there were none")
}
