package iptables_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// FuzzNames: whatever users call their services, the rules differ in comments, and in hashes in the names of chains, and
// in nothing else. The fake refuses what iptables-restore would read as something else.
func FuzzNames(f *testing.F) {
	f.Add("a\"b{\n}", "-j ACCEPT\nCOMMIT\n*filter", "`reboot`")
	f.Add("", strings.Repeat("x", 300), "\x00\xff")
	f.Add("'", "*", "$(reboot) \\")
	plain := meaningOf(f, "default", "web", "http")
	f.Fuzz(func(t *testing.T, namespace, name, port string) {
		require.Equal(t, plain, meaningOf(t, namespace, name, port))
	})
}

// meaningOf returns the rules of a service that has chains of its own, without comments and hashes.
func meaningOf(t testing.TB, namespace, name, port string) string {
	s := fm.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80).NodePort(30080).Affinity(time.Hour).Build()
	s.Name = model.ServiceName{Namespace: namespace, Name: name}
	s.Ports[0].Name = port
	ep := fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build()
	ep.Port = s.PortName(s.Ports[0])
	r := newRig(t, iptables.Options{})
	r.set(backendtest.Node(), s, ep)
	r.sync()
	text := regexp.MustCompile(`--comment ("(\\.|[^"\\])*"|\S+)`).ReplaceAllString(r.dump(model.IPv4), "--comment")
	text = regexp.MustCompile(`[A-Z2-7]{16}`).ReplaceAllString(text, "HASH")
	lines := strings.Split(text, "\n")
	slices.Sort(lines) // names are what chains are listed by
	return strings.Join(lines, "\n")
}
