package library_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// theNode is the node that all proxies here run on.
const theNode = "n1"

// waitTimeout is how long to wait for what is expected. The longest pause of a source between two attempts is a minute.
const waitTimeout = 10 * time.Minute

// proxy is a running kubeproxy.Run with a sink that records.
type proxy struct {
	sink.Recorder
	t     *testing.T
	name  string
	calls []sink.Call // of the waves so far
}

// startProxy runs a proxy until the test ends. Nothing makes it call its sink but changes.
func startProxy(t *testing.T, name string, source watch.Source, serviceProxyName string) *proxy {
	p := &proxy{t: t, name: name}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(0)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger.WithName(name)))
	ended := make(chan error, 1)
	go func() {
		ended <- kubeproxy.Run(ctx, kubeproxy.Options{
			Feed: &kubeproxy.LocalFeed{Source: source,
				State:   localstate.Options{NodeName: theNode},
				Cluster: localstate.ClusterOptions{ServiceProxyName: serviceProxyName}},
			Sink: &p.Recorder, MinInterval: -1, ResyncInterval: -1,
		})
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended, name)
		assert.Empty(t, p.Violations(), name)
	})
	return p
}

// await waits until the state is as expected after one of the waves.
func (p *proxy) await(what string, ok func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), waitTimeout)
	defer cancel()
	for !ok() {
		wave, err := p.NextWave(ctx)
		require.NoError(p.t, err, "%s waits for: %s; there is\n%s", p.name, what, strings.Join(p.state(), "\n"))
		p.calls = append(p.calls, wave.Calls...)
	}
}

// awaitState waits until exactly these services and endpoints exist.
func (p *proxy) awaitState(what string, want ...string) {
	p.t.Helper()
	slices.Sort(want)
	p.await(what+":\n"+strings.Join(want, "\n"), func() bool { return slices.Equal(want, p.state()) })
}

// state returns the services, and the endpoints with what they belong to. The service of the API server is left out.
func (p *proxy) state() []string {
	var lines []string
	for name := range p.Services() {
		if name.Name != "kubernetes" {
			lines = append(lines, name.Name)
		}
	}
	for key := range p.Endpoints() {
		lines = append(lines, key.Port.Service.Name+" -> "+key.Target.String())
	}
	slices.Sort(lines)
	return lines
}

// takeCalls returns the calls since the last takeCalls, each once and sorted: the method and what it is about.
func (p *proxy) takeCalls() []string {
	for _, wave := range p.TakeWaves() {
		p.calls = append(p.calls, wave.Calls...)
	}
	var lines []string
	for _, c := range p.calls {
		line := string(c.Op)
		switch c.Op {
		case sink.OpSetService, sink.OpDeleteService:
			line += " " + c.Name.Name
		case sink.OpSetEndpoint, sink.OpDeleteEndpoint:
			line += " " + c.Key.Port.Service.Name + " -> " + c.Key.Target.String()
		}
		lines = append(lines, line)
	}
	p.calls = nil
	slices.Sort(lines)
	return slices.Compact(lines)
}

// newSource makes a source of the kind that a test is about.
type newSource func(t *testing.T, client kubernetes.Interface, serviceProxyName string) watch.Source

func clientset(t *testing.T, client kubernetes.Interface, serviceProxyName string) watch.Source {
	s, err := watch.NewClientset(client, watch.ClientsetOptions{ServiceProxyName: serviceProxyName})
	require.NoError(t, err)
	return s
}

// sharedInformers is a source of informers that the program has anyway, for all objects of the cluster.
func sharedInformers(t *testing.T, client kubernetes.Interface, _ string) watch.Source {
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := watch.NewInformers(factory, watch.InformersOptions{})
	require.NoError(t, err)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(0)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(t.Context()), logger))
	factory.StartWithContext(ctx)
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	return s
}
