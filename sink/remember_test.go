package sink_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestRememberServicesKeepsTheSelectedOnes(t *testing.T) {
	var next sink.Recorder
	kept, changed := map[model.ServiceName]*model.Service{}, []model.ServiceName{}
	m := sink.RememberServices(&next, kept, odd, func(name model.ServiceName) { changed = append(changed, name) })
	odd1, odd3, even := service("a", 1), service("a", 3), service("a", 2)
	for _, step := range []struct {
		name    string
		call    func()
		want    *model.Service
		changed int
	}{
		{"a service that is not selected", func() { m.SetService(even) }, nil, 0},
		{"one that is", func() { m.SetService(odd1) }, odd1, 1},
		{"a newer version", func() { m.SetService(odd3) }, odd3, 1},
		{"no longer selected", func() { m.SetService(even) }, nil, 1},
		{"deleted afterwards", func() { m.DeleteService(even.Name) }, nil, 0},
		{"selected again", func() { m.SetService(odd1) }, odd1, 1},
		{"deleted", func() { m.DeleteService(odd1.Name) }, nil, 1},
	} {
		changed = changed[:0]
		step.call()
		assert.Same(t, step.want, kept[name("a")], step.name)
		assert.Len(t, changed, step.changed, step.name)
	}
	require.NoError(t, m.Sync(t.Context()))
	assert.Len(t, next.TakeLines(), 8, "every call is passed on")
}

func rememberAll(next sink.Sink) *sink.ServiceMemory {
	return sink.RememberServices(next, map[model.ServiceName]*model.Service{},
		func(*model.Service) bool { return true }, func(model.ServiceName) {})
}
