package cases

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
)

func TestFactoriesThatMakeNoSense(t *testing.T) {
	idle := func(context.Context, backend.Env) (sink.Sink, error) { return new(sink.Recorder), nil }
	assert.ErrorContains(t, Check(backend.Factory{New: idle, Lacks: []backend.Feature{backend.IPv4, backend.IPv6}}),
		"lacks both IP families")
	assert.ErrorContains(t, Check(backend.Factory{}), "has no New")
	assert.ErrorContains(t, Check(backend.Factory{New: idle, Lacks: []backend.Feature{"Foo"}}),
		`there is no feature "Foo"`)
	assert.ErrorContains(t, Check(backend.Factory{New: idle, Waives: []string{backend.BridgeCase, "a case"}}),
		`waives "a case"`)
	names := map[string]bool{}
	for _, c := range All() {
		assert.False(t, names[c.Name], "two cases are named %q", c.Name)
		names[c.Name] = true
		assert.NoError(t, Check(backend.Factory{New: idle, Waives: []string{c.Name}}))
		assert.NotEmpty(t, c.Missing(backend.Factory{New: idle, Waives: []string{c.Name}}), "%q is not run", c.Name)
	}
	for _, name := range []string{backend.SharedAffinityCase, unknownPortsCase, backend.ExternalPortsCase,
		backend.BridgeCase, backend.InterfaceCase} {
		assert.True(t, names[name], "there is no case %q", name)
	}
}

func TestCasesWithRulesOfIPTablesNeedIt(t *testing.T) {
	hook := func(context.Context, backend.Env) error { return nil }
	f := backend.Factory{Cleanup: hook, Break: hook,
		Fail: func(context.Context, backend.Env) (func() error, error) { return func() error { return nil }, nil }}
	t.Setenv("PATH", t.TempDir())
	var missing []string
	for _, c := range All() {
		if why := c.Missing(f); why != "" {
			assert.Equal(t, "iptables is not installed", why, c.Name)
			missing = append(missing, c.Name)
		}
	}
	assert.ElementsMatch(t, []string{pluginRulesCase, leftoversCase}, missing)
}
