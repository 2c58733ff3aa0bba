package wire

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Labels that the new service has as well are not kept by the old one: an endpoint that becomes ready may change the
// routes of its service, not its object.
func TestLabelsThatAreStillInUseAreNotCounted(t *testing.T) {
	labels := map[string]string{"app": "shop", "tier": "web"}
	old := &model.Service{Labels: labels}
	size := func(now *model.Service) int { return (&Delta{ServiceChanged: true, Old: old, New: now}).Size() }
	bare := (&Delta{ServiceChanged: true, Old: &model.Service{}}).Size()
	own := 2*32 + len("app"+"shop"+"tier"+"web")
	assert.Equal(t, bare, size(&model.Service{Labels: labels}))
	assert.Equal(t, bare+own, size(&model.Service{Labels: maps.Clone(labels)}), "of another object")
	assert.Equal(t, bare+own, size(nil))
}

// Compressors are reused, whatever they compressed before.
func TestSharedCompressorsCompressTheSame(t *testing.T) {
	encode := func(w *Chunks, from int) (all []string) {
		for i := range 3000 {
			w.Deleted(model.ServiceName{Namespace: "default", Name: string(rune('a' + (from+i)%700))})
		}
		for _, f := range w.Done() {
			all = append(all, string(f.Bytes()))
		}
		return all
	}
	var compressors Compressors
	for from := range 3 {
		want := encode(&Chunks{}, from)
		assert.Greater(t, len(want), 1)
		assert.Equal(t, want, encode(NewChunks(&compressors), from))
	}
}
