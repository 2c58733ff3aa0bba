package sink_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// odd keeps the services with an odd last byte of their cluster IP.
func odd(s *model.Service) bool { return s.ClusterIPs[0].As4()[3]%2 == 1 }

func TestFilter(t *testing.T) {
	const a1 = "SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP"
	var r sink.Recorder
	f := sink.Filter(&r, sink.Keep{Service: odd})
	f.SetNode(&model.Node{Name: "n"})
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"a service that is kept passes", func() {
			f.SetService(service("a", 1))
			f.SetEndpoint(httpEndpoint("a", "10.0.0.1:80"))
		}, []string{"SetNode n", a1, "SetEndpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Cluster"}},
		{"a hidden one does not, nor its endpoints", func() {
			f.SetService(service("b", 2))
			f.SetEndpoint(httpEndpoint("b", "10.0.0.2:80"))
			f.SetEndpoint(httpEndpoint("b", "10.0.0.1:80"))
		}, nil},
		{"one that becomes hidden goes, its endpoints first, before what comes", func() {
			f.SetEndpoint(httpEndpoint("a", "10.0.0.2:80"))
			f.SetService(service("0", 1))
			f.SetService(service("a", 2))
		}, []string{
			"DeleteEndpoint ns/a:http/TCP -> 10.0.0.1:80",
			"DeleteService ns/a",
			"SetService ns/0 cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP",
		}},
		{"one that becomes kept comes with the endpoints it has by then", func() {
			f.SetService(service("b", 3))
			f.DeleteEndpoint(httpKey("b", "10.0.0.2:80"))
			f.SetEndpoint(httpEndpoint("b", "10.0.0.0:80"))
		}, []string{
			"SetService ns/b cluster-ips=10.96.0.3; http 80/TCP; dns 53/UDP",
			"SetEndpoint ns/b:http/TCP -> 10.0.0.0:80 sets=Cluster",
			"SetEndpoint ns/b:http/TCP -> 10.0.0.1:80 sets=Cluster",
		}},
		{"changes of a hidden one stay hidden", func() {
			f.SetService(service("a", 4))
			f.DeleteEndpoint(httpKey("a", "10.0.0.1:80"))
		}, nil},
		{"what came while it was hidden is there when it is kept again", func() {
			f.SetService(service("a", 1))
		}, []string{a1, "SetEndpoint ns/a:http/TCP -> 10.0.0.2:80 sets=Cluster"}},
		{"in and out in one wave is nothing", func() {
			f.SetService(service("a", 2))
			f.SetService(service("a", 1))
		}, nil},
		{"a hidden service goes unnoticed", func() {
			f.SetService(service("c", 2))
			f.DeleteService(name("c"))
		}, nil},
		{"endpoints before their service wait for it", func() {
			f.SetEndpoint(httpEndpoint("d", "10.0.0.4:80"))
		}, nil},
		{"and come after it", func() {
			f.SetService(service("d", 1))
		}, []string{
			"SetService ns/d cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP",
			"SetEndpoint ns/d:http/TCP -> 10.0.0.4:80 sets=Cluster",
		}},
		{"a kept service goes", func() {
			f.DeleteEndpoint(httpKey("b", "10.0.0.0:80"))
			f.DeleteEndpoint(httpKey("b", "10.0.0.1:80"))
			f.DeleteService(name("b"))
		}, []string{
			"DeleteEndpoint ns/b:http/TCP -> 10.0.0.0:80",
			"DeleteEndpoint ns/b:http/TCP -> 10.0.0.1:80",
			"DeleteService ns/b",
		}},
	} {
		step.do()
		require.NoError(t, f.Sync(t.Context()), step.name)
		require.Equal(t, append(step.want, "Sync"), r.TakeLines(), step.name)
	}
	assert.Empty(t, r.Violations())
}

func TestFilterAsksOnlyWhenTheServiceItselfChanges(t *testing.T) {
	asked := 0
	f := sink.Filter(&sink.Recorder{}, sink.Keep{Service: func(*model.Service) bool {
		asked++
		return true
	}})
	for _, step := range []struct {
		do   func()
		want int
	}{
		{func() { f.SetService(service("a", 1)); f.SetService(service("a", 2)) }, 1},
		{func() { f.SetEndpoint(httpEndpoint("a", "10.0.0.1:80")) }, 1},
		{func() { f.SetService(service("a", 2)) }, 1},
		{func() { f.SetService(service("a", 3)) }, 2},
		{func() { f.DeleteService(name("a")) }, 2},
	} {
		step.do()
		require.NoError(t, f.Sync(t.Context()))
		require.Equal(t, step.want, asked)
	}
}

func TestFilterDoesNotRepeatWhatTheNextSinkHasAfterAFailure(t *testing.T) {
	var r sink.Recorder
	f := sink.Filter(&r, sink.Keep{Service: odd})
	broken := &sink.FamilyError{Family: model.IPv4, Err: errors.New("broken")}
	r.FailNext(broken)
	require.Equal(t, broken, everyCall(f))
	assert.Equal(t, []string{allLines[0], allLines[5], allLines[3], allLines[4], "Sync: IPv4: broken"}, r.TakeLines())
	f.ForceResync()
	require.NoError(t, f.Sync(t.Context()))
	assert.Equal(t, []string{"ForceResync", "Sync"}, r.TakeLines())
}

// noNode is a filter that does not receive nodes.
type noNode struct{ *sink.FilterSink }

func (noNode) SetNode(*model.Node) {}

// For any calls in any order, the next sink gets waves that comply with the contract, and the selected services.
func FuzzFilter(f *testing.F) {
	addRandom(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var r sink.Recorder
		filter, n := sink.Filter(&r, sink.Keep{Service: odd}), newNaive()
		filter.SetNode(&model.Node{Name: "n"})
		intn, done := picker(data)
		for !done() {
			pickCall(intn, 4, noNode{filter}, n)
			switch intn(5) {
			case 0:
				require.NoError(t, filter.Sync(t.Context()))
			case 1:
				r.FailNext(errors.New("not now"))
				require.Error(t, filter.Sync(t.Context()))
				filter.ForceResync()
			}
		}
		require.NoError(t, filter.Sync(t.Context()))
		require.Empty(t, r.Violations())

		maps.DeleteFunc(n.services, func(_ model.ServiceName, s *model.Service) bool { return !odd(s) })
		maps.DeleteFunc(n.endpoints, func(k model.EndpointKey, _ *model.Endpoint) bool {
			return n.services[k.Port.Service] == nil
		})
		require.Equal(t, n.services, r.Services())
		require.Equal(t, n.endpoints, r.Endpoints())
	})
}

func TestFilterHidesEndpointsAndAsksAgainOnRequest(t *testing.T) {
	var r sink.Recorder
	hidden := map[string]bool{"10.0.0.2:80": true}
	asked := 0
	f := sink.Filter(&r, sink.Keep{
		Service: func(s *model.Service) bool { return !hidden[s.Name.Name] },
		Endpoint: func(s *model.Service, e *model.Endpoint) bool {
			asked++
			return e.Port.Service == s.Name && !hidden[e.Target.String()]
		},
	})
	f.SetNode(&model.Node{Name: "n"})
	sync := func(wantAsked int, want ...string) {
		t.Helper()
		asked = 0
		require.NoError(t, f.Sync(t.Context()))
		require.Equal(t, append(want, "Sync"), r.TakeLines())
		require.Equal(t, wantAsked, asked)
	}
	const a = "SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP"
	const set, gone = "SetEndpoint ns/a:http/TCP -> ", "DeleteEndpoint ns/a:http/TCP -> "
	f.SetService(service("a", 1))
	for _, target := range []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"} {
		f.SetEndpoint(httpEndpoint("a", target))
	}
	sync(3, "SetNode n", a, set+"10.0.0.1:80 sets=Cluster", set+"10.0.0.3:80 sets=Cluster")

	f.SetEndpoint(httpEndpoint("a", "10.0.0.0:80"))
	f.DeleteEndpoint(httpKey("a", "10.0.0.3:80"))
	sync(1, gone+"10.0.0.3:80", set+"10.0.0.0:80 sets=Cluster")

	delete(hidden, "10.0.0.2:80")
	hidden["10.0.0.1:80"] = true
	sync(0)
	f.Ask(name("a"), name("unknown"))
	sync(3, gone+"10.0.0.1:80", set+"10.0.0.2:80 sets=Cluster")
	sync(0)

	hidden["a"] = true
	f.Ask()
	sync(0, gone+"10.0.0.0:80", gone+"10.0.0.2:80", "DeleteService ns/a")
	delete(hidden, "a")
	f.SetService(service("b", 2))
	f.Ask()
	sync(3, a, set+"10.0.0.0:80 sets=Cluster", set+"10.0.0.2:80 sets=Cluster",
		"SetService ns/b cluster-ips=10.96.0.2; http 80/TCP; dns 53/UDP")
	f.Ask()
	f.DeleteService(name("b"))
	sync(3, "DeleteService ns/b")
	assert.Empty(t, r.Violations())
}
