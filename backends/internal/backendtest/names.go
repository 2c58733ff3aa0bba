package backendtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// FuzzNames is a fuzz target: whatever users call a service, a backend makes the same rules for it. The service has
// session affinity, for which backends make chains of its own. rules returns what a new backend makes of values,
// without comments and without the names of such chains.
func FuzzNames(f *testing.F, rules func(t testing.TB, values ...any) string) {
	f.Add("a\"b{\n}", "; flush ruleset #", "`reboot`")
	f.Add("a\"b{\n}", "-j ACCEPT\nCOMMIT\n*filter", "`reboot`")
	f.Add("", strings.Repeat("x", 300), "\x00\xff")
	f.Add("drop", "*", "$(reboot) \\")
	f.Add("'", "*", "$(reboot) \\")
	sorted := func(t testing.TB, namespace, name, port string) string {
		s := fm.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80).NodePort(30080).Affinity(time.Hour).
			Build()
		s.Name = model.ServiceName{Namespace: namespace, Name: name}
		s.Ports[0].Name = port
		ep := fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build()
		ep.Port = s.PortName(s.Ports[0])
		lines := strings.Split(rules(t, Node(), s, ep), "\n")
		slices.Sort(lines) // chains are listed by their names
		return strings.Join(lines, "\n")
	}
	plain := sorted(f, "default", "web", "http")
	f.Fuzz(func(t *testing.T, namespace, name, port string) {
		require.Equal(t, plain, sorted(t, namespace, name, port))
	})
}
