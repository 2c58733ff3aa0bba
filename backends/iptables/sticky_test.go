package iptables_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// sticky is a rig with limits for sticky endpoints, and what it tells.
type sticky struct {
	*rig
	problems []frontend.Problem
}

func newSticky(t *testing.T, service, namespace int) *sticky {
	s := &sticky{}
	s.rig = newRig(t, iptables.Options{Common: frontend.Common{
		Limits: frontend.Limits{Service: frontend.Budget{StickyEndpoints: service},
			Namespace: frontend.Budget{StickyEndpoints: namespace}},
		OnProblem: func(_ context.Context, p frontend.Problem) { s.problems = append(s.problems, p) }}})
	s.Set(backendtest.Node())
	return s
}

// have returns the service ports with affinity.
func (s *sticky) have() (list []string) {
	for line := range strings.Lines(s.dump(model.IPv4)) {
		if _, after, found := strings.Cut(line, "--comment "); found && strings.Contains(line, "-m recent --update") {
			list = append(list, strings.Trim(strings.Fields(after)[0], `"`))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Of a service with too many endpoints some ports have affinity, all are served, and other namespaces have theirs.
func TestAServiceWithTooManyStickyEndpointsIsServedWithoutAffinity(t *testing.T) {
	s := newSticky(t, 100, 150)
	big := backendtest.Sticky("evil/big", 2021, 1, 60, "a", "b", "c")
	s.Set(append(big, backendtest.Sticky("prod/web", 2024, 2, 100, "http")...)...)
	s.Sync()
	assert.Equal(t, []string{"evil/big:a", "prod/web:http"}, s.have())
	for _, endpoint := range []string{"10.101.0.59:8080", "10.101.0.59:8081", "10.101.0.59:8082"} {
		assert.Contains(t, s.dump(model.IPv4), "DNAT --to-destination "+endpoint, "every port is served")
	}
	require.Len(t, s.problems, 2)
	assert.Equal(t, frontend.TooManyStickyEndpoints, s.problems[0].Reason)
	assert.Equal(t, "evil/big:b/TCP", s.problems[0].Port.String())
	const message = "it is served without session affinity: a service may have 100 endpoints with it"
	assert.Equal(t, message, s.problems[0].Message)
	name := s.problems[0].Port.Service
	assert.Equal(t, []string{message}, s.backend.Problems(name))

	s.Delete(big[len(big)-20:]...) // of port c
	s.Sync()
	assert.Equal(t, []string{"evil/big:a", "evil/big:c", "prod/web:http"}, s.have(), "it fits")
	s.Delete(big[61:121]...) // of port b
	s.Sync()
	assert.Equal(t, []string{"evil/big:a", "evil/big:c", "prod/web:http"}, s.have())
	assert.Empty(t, s.backend.Problems(name))
	assert.Len(t, s.problems, 2)
	s.Set(big[61:121]...)
	s.Sync()
	assert.Len(t, s.problems, 3, "it is told again")
}

// Who has affinity follows from the services as they are: the oldest of a namespace come first.
func TestTheOldestServicesOfANamespaceHaveAffinity(t *testing.T) {
	s := newSticky(t, 100, 150)
	old := backendtest.Sticky("evil/old", 2021, 1, 80, "http")
	other := backendtest.Sticky("evil/other", 2022, 2, 80, "http")
	small := backendtest.Sticky("evil/small", 2023, 3, 70, "http")
	plain := backendtest.Sticky("evil/plain", 2020, 4, 90, "http")
	service := *plain[0].(*model.Service)
	service.SessionAffinityTimeout = 0
	plain[0] = &service
	s.Set(slices.Concat(small, other, plain)...)
	s.Sync()
	assert.Equal(t, []string{"evil/other:http", "evil/small:http"}, s.have())
	assert.Empty(t, s.problems)
	s.Set(old...)
	s.Sync()
	assert.Equal(t, []string{"evil/old:http", "evil/small:http"}, s.have(), "what still fits has it")
	assert.Len(t, s.problems, 1)
	assert.Equal(t, "it is served without session affinity: the services of a namespace may have 150 endpoints with it "+
		"together, and older ones have them", s.problems[0].Message)
	slices.Reverse(old) // endpoints are deleted before their service
	s.Delete(old...)
	s.Sync()
	assert.Equal(t, []string{"evil/other:http", "evil/small:http"}, s.have())
	assert.Empty(t, s.backend.Problems(s.problems[0].Port.Service))
	s.Set(fm.Service("evil/plain").ClusterIP("10.96.0.4").Port("http", 80).Affinity(time.Hour).
		Created(service.Created).Build())
	s.Sync()
	assert.Equal(t, []string{"evil/plain:http"}, s.have(), "affinity is switched on")
}
