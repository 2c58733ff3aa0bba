package backendtest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

func TestAFlowIsAnsweredByAnEndpointAndElseIsLost(t *testing.T) {
	f := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	assert.True(t, f.Flow(0, f.EndpointAddr(12)))
	silent, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	assert.NoError(t, err)
	defer unix.Close(silent)
	assert.NoError(t, unix.Bind(silent, f.EndpointAddr(13)))
	assert.False(t, f.Flow(1, f.EndpointAddr(13)))
}
