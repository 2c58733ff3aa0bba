package nft_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// FuzzNames: whatever users call their services, the ruleset differs in comments, and in what it calls chains and sets,
// and in nothing else. The fake refuses names and comments that nft could not read again.
func FuzzNames(f *testing.F) {
	f.Add("a\"b{\n}", "; flush ruleset #", "`reboot`")
	f.Add("", strings.Repeat("x", 300), "\x00\xff")
	f.Add("drop", "*", "$(reboot) \\")
	plain := meaningOf(f, "default", "web", "http")
	f.Fuzz(func(t *testing.T, namespace, name, port string) {
		require.Equal(t, plain, meaningOf(t, namespace, name, port))
	})
}

// meaningOf returns the ruleset of a service that has chains and a set of its own, without comments and names of these.
func meaningOf(t testing.TB, namespace, name, port string) string {
	s := fm.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80).NodePort(30080).Affinity(time.Hour).Build()
	s.Name = model.ServiceName{Namespace: namespace, Name: name}
	s.Ports[0].Name = port
	ep := fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build()
	ep.Port = s.PortName(s.Ports[0])
	r := newRig(t, nft.Options{Families: []model.Family{model.IPv4}})
	r.set(backendtest.Node(), s, ep)
	r.sync()
	text := regexp.MustCompile(`"[^"\n]*"`).ReplaceAllString(r.dump(model.IPv4), `""`)
	text = regexp.MustCompile(`[a-z2-7]{16}(-[A-Za-z0-9/_.-]*)?`).ReplaceAllString(text, "OWN")
	lines := strings.Split(text, "\n")
	slices.Sort(lines) // names are what chains are listed by
	return strings.Join(lines, "\n")
}
