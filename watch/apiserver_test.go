package watch

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

// apiServer is an API server in this process, which clients call without a network, so that tests can run under
// synctest.
type apiServer struct {
	*apiserver.Server
	t      *testing.T
	refuse func(apiserver.Request) error
}

func newAPIServer(t *testing.T, objs ...object) *apiServer {
	server, err := apiserver.New()
	require.NoError(t, err)
	s := &apiServer{Server: server, t: t}
	s.apply(objs...)
	return s
}

func (s *apiServer) client() kubernetes.Interface {
	c, err := kubernetes.NewForConfig(s.Config())
	require.NoError(s.t, err)
	return c
}

// noWatchList makes the server one that cannot stream lists.
func noWatchList(r apiserver.Request) error {
	if r.StreamsList() {
		return apierrors.NewBadRequest("sendInitialEvents is forbidden")
	}
	return nil
}

// apply creates or replaces objects.
func (s *apiServer) apply(objs ...object) {
	for _, o := range objs {
		require.NoError(s.t, s.Set(o))
	}
}

// remove deletes objects.
func (s *apiServer) remove(objs ...object) {
	for _, o := range objs {
		require.NoError(s.t, s.Delete(o))
	}
}

// setRefuse sets which requests are answered with an error; nil: none.
func (s *apiServer) setRefuse(f func(apiserver.Request) error) {
	s.refuse = f
	if f == nil {
		s.SetFaults(nil)
		return
	}
	s.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault { return apiserver.Fault{Err: f(r)} })
}

// kindOfRequest returns what a request is about.
func kindOfRequest(r apiserver.Request) kind {
	for k := range serviceCIDRs + 1 {
		if r.Resource.GroupResource().String() == k.String() {
			return k
		}
	}
	panic("unexpected request: " + r.String())
}

func countIn(s, substring string) int { return strings.Count(s, substring) }
