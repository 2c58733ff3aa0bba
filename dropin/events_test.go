package dropin

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// recording returns an events whose Events are received from a channel.
func recording(t *testing.T) (*events, <-chan *eventsv1.Event) {
	client := fake.NewClientset()
	written := make(chan *eventsv1.Event, 10)
	client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*eventsv1.Event)
		written <- event
		return true, event, nil
	})
	e, err := newEvents(t.Context(), client, "n1")
	require.NoError(t, err)
	t.Cleanup(e.close)
	return e, written
}

// eventsOf starts the program and returns the n Events that it writes on the Node besides the one that it serves. They
// are written in the background, in any order.
func eventsOf(t *testing.T, n int, args ...string) (r *rig, others []*eventsv1.Event) {
	r = newRig(t, cluster()...)
	written := make(chan *eventsv1.Event, 10)
	r.client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*eventsv1.Event)
		written <- event
		return true, event, nil
	})
	stop := r.start(t, args...)
	for range n + 1 {
		select {
		case event := <-written:
			assert.Equal(t, "Node n1 n1", event.Regarding.Kind+" "+event.Regarding.Name+" "+string(event.Regarding.UID))
			if event.Reason != "Starting" {
				others = append(others, event)
			}
		case <-r.ended:
			t.Fatal("the program ended", r.logged())
		}
	}
	require.NoError(t, stop())
	return r, others
}

// Reasons, types and actions are kube-proxy's, for programs that look for them.
func TestNoticesAboutTheModeAreEventsOnTheNode(t *testing.T) {
	needModesOfLinux(t)
	file := func(mode string) []string {
		return []string{"--config=" + writeFile(t, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"+
			"kind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n"+mode)}
	}
	notes := map[string]string{"KubeProxyDefaultMode": noMode().note, "IPVSDeprecation": modeIPVS().note}
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"no mode", []string{"--cluster-cidr=10.244.0.0/16"}, []string{"KubeProxyDefaultMode"}},
		{"an empty mode", []string{"--cluster-cidr=10.244.0.0/16", "--proxy-mode="}, []string{"KubeProxyDefaultMode"}},
		{"no mode in a file", file(""), []string{"KubeProxyDefaultMode"}},
		{"mode iptables", []string{"--cluster-cidr=10.244.0.0/16", "--proxy-mode=iptables"}, nil},
		{"mode iptables in a file", file("mode: iptables\n"), nil},
		{"mode nftables", []string{"--cluster-cidr=10.244.0.0/16", "--proxy-mode=nftables"}, nil},
		{"mode ipvs", []string{"--cluster-cidr=10.244.0.0/16", "--proxy-mode=ipvs"}, []string{"IPVSDeprecation"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, got := eventsOf(t, len(test.want), test.args...)
			require.Len(t, got, len(test.want))
			for reason, note := range notes {
				assert.Equal(t, slices.Contains(test.want, reason), strings.Contains(r.logged(), note), reason)
			}
			for i, reason := range test.want {
				assert.Equal(t, "Warning "+reason+" StartKubeProxy", got[i].Type+" "+got[i].Reason+" "+got[i].Action)
				assert.Equal(t, notes[reason], got[i].Note)
			}
		})
	}
}

// A service that loses an address to another one gets an Event, and the page shows it, in every mode (S59).
func TestALostAddressIsAnEventOnTheServiceThatLosesIt(t *testing.T) {
	e, written := recording(t)
	t.Setenv(networkVariable, hnsNetwork)
	for _, m := range modes() {
		t.Run(string(m.name), func(t *testing.T) {
			r := newRig(t)
			s, _, err := fromArgs(t, "--proxy-mode="+string(m.name))
			require.NoError(t, err)
			b, err := m.start(t.Context(), s.KubeProxyConfiguration, r.machine,
				backendOptions{Common: frontend.Common{Families: []model.Family{model.IPv4}, OnProblem: e.notServed}})
			require.NoError(t, err)
			defer func() { assert.NoError(t, b.Close()) }()
			reported := map[string][]string{}
			reporter := b.(sink.ProblemReporter)
			reporter.ReportProblems(func(name model.ServiceName, any bool) {
				require.True(t, any)
				reported[name.String()] = nil
			})
			b.SetService(fakemodel.Service("prod/web").Port("http", 80).ExternalIP("203.0.113.1").Build())
			require.NoError(t, b.Sync(t.Context()))
			other := string(m.name) + "/x" // Events of the same kind about one object are written as a series
			b.SetService(fakemodel.Service(other).Port("http", 80).ExternalIP("203.0.113.1").Build())
			require.NoError(t, b.Sync(t.Context()))
			got := <-written
			assert.Equal(t, "Service "+other, got.Regarding.Kind+" "+got.Regarding.Namespace+"/"+got.Regarding.Name)
			assert.Equal(t, "Warning AddressInUse Sync", got.Type+" "+got.Reason+" "+got.Action)
			assert.Equal(t, `node n1 does not serve part of port "http" (TCP, IPv4): 203.0.113.1:80/TCP belongs to `+
				"prod/web:http/TCP", got.Note)
			for name := range reported {
				namespace, short, _ := strings.Cut(name, "/")
				reported[name] = reporter.Problems(model.ServiceName{Namespace: namespace, Name: short})
			}
			assert.Equal(t, map[string][]string{other: {"203.0.113.1:80/TCP belongs to prod/web:http/TCP"}}, reported)
		})
	}
}

func TestAServicePortThatCannotBeAppliedIsAnEventOnItsService(t *testing.T) {
	e, written := recording(t)
	port := model.PortName{Service: model.ServiceName{Namespace: "tel", Name: "sip"}, Port: "sctp",
		Protocol: model.SCTP}
	e.portFailed(&sink.PortError{Port: port, Family: model.IPv6, Err: errors.New("no match sctp")})
	got := <-written
	assert.Equal(t, "Service tel/sip", got.Regarding.Kind+" "+got.Regarding.Namespace+"/"+got.Regarding.Name)
	assert.Equal(t, "Warning FailedToApplyServicePort Sync", got.Type+" "+got.Reason+" "+got.Action)
	assert.Equal(t, `node n1 failed to apply port "sctp" (SCTP, IPv6): no match sctp`, got.Note)

	e.portFailed(&sink.PortError{Port: port, Family: model.IPv6, Err: errors.Join(frontend.Problem{Message: "too many"})})
	select {
	case got := <-written:
		t.Errorf("notServed has written it: %v", got.Note)
	default:
	}

	port.Service.Name = "long" // Events of the same kind about one object are written as a series
	e.portFailed(&sink.PortError{Port: port, Family: model.IPv6, Err: errors.New(strings.Repeat("ä", 2000))})
	got = <-written
	assert.LessOrEqual(t, len(got.Note), 1024, "the API server takes no more")
	assert.True(t, strings.HasSuffix(got.Note, "ä..."))
}
