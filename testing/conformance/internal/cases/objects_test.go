package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestEveryTrafficCaseHasObjects(t *testing.T) {
	clusters, err := Objects()
	require.NoError(t, err)
	for _, c := range trafficCases() {
		require.Len(t, clusters[c.name], len(c.steps), c.name)
		for i, objects := range clusters[c.name] {
			services, nodes := 0, 0
			for _, o := range objects {
				switch o.(type) {
				case *corev1.Service:
					services++
				case *corev1.Node:
					nodes++
				}
			}
			assert.Equal(t, len(c.steps[i].services), services, "%s, state %d", c.name, i+1)
			assert.Equal(t, 1, nodes)
		}
	}
	assert.Len(t, clusters, len(trafficCases()))
}
