package ipvs

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// What the kernel counts for virtual servers, by address and by mark, of both families, is added up by service; those
// of other programs count for none.
func TestTrafficIsCountedByService(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, backendtest.EveryFeature()...)
	require.NoError(t, k.ipvs.AddServer(t.Context(), dp.Server{ServerKey: key("10.96.9.9:80", model.TCP), Scheduler: "rr"}))
	list, err := k.ipvs.Servers(t.Context())
	require.NoError(t, err)
	want, byMark, byFamily := map[model.ServiceName]sink.Traffic{}, 0, map[model.Family]int{}
	for i, s := range list {
		connections, bytes := uint64(1)<<i, uint64(1000)<<i // so that no two sums are equal
		k.ipvs.Count(s.ServerKey, connections, bytes)
		known := b.families[s.Family].servers.byKey[s.ServerKey]
		if s.Flags&dp.Owned == 0 {
			assert.Nil(t, known)
			continue
		}
		if byFamily[s.Family]++; s.Mark != 0 {
			byMark++
		}
		sum := want[known.owner.name.Service]
		want[known.owner.name.Service] = sink.Traffic{Connections: sum.Connections + connections, Bytes: sum.Bytes + bytes}
	}
	assert.Positive(t, byMark)
	assert.Len(t, byFamily, 2)
	got, err := b.CountTraffic(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, got)

	k.ipvs.TakeCalls()
	require.NoError(t, b.Sync(t.Context()))
	assert.Zero(t, k.ipvs.TakeCalls().Reads, "Syncs do not count")
}
