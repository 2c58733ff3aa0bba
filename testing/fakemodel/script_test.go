package fakemodel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestScripts(t *testing.T) {
	RunScripts(t, "testdata/scripts", func(testing.TB) Options {
		var dataplane []string
		newSink := func() sink.Sink { return &backend{Recorder: &sink.Recorder{}, dataplane: &dataplane} }
		return Options{NewSink: newSink, Dump: func() string { return strings.Join(dataplane, "\n") + "\n" }}
	})
}

// scriptT stands in for the test that a script is run in.
type scriptT struct{ log []string }

func (t *scriptT) Skip(...any)                          { panic("skipped") }
func (t *scriptT) Fatal(args ...any)                    { t.Log(args...); t.FailNow() }
func (t *scriptT) Parallel()                            {}
func (t *scriptT) Log(args ...any)                      { t.log = append(t.log, fmt.Sprint(args...)) }
func (t *scriptT) FailNow()                             { panic(failed{}) }
func (t *scriptT) Run(_ string, f func(t testscript.T)) { f(t) }
func (t *scriptT) Verbose() bool                        { return false }

// runScript runs a script and returns how it failed, "" if it did not, and the script as it is afterwards.
func runScript(t *testing.T, text string, opts Options) (message, after string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script.txtar")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	st := &scriptT{}
	func() {
		defer func() {
			if r := recover(); r != nil {
				require.Equal(t, failed{}, r)
				message = strings.Join(st.log, "\n")
			}
		}()
		testscript.RunT(st, scriptParams(t, filepath.Dir(file), func(testing.TB) Options { return opts }))
	}()
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	return message, string(written)
}

const service = `
-- service.yaml --
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
-- pod.yaml --
kind: Pod
`

func TestScriptsFailReadable(t *testing.T) {
	tests := []struct {
		name, script string
		want         []string
	}{
		{"a wrong transcript is shown with what it should have been", "set service.yaml\nsync\ncmp stdout want.txt" + service + "-- want.txt --\nSetNode n2\nSync\n",
			[]string{"-SetNode n1", "+SetNode n2", "stdout and want.txt differ"}},
		{"a Sync that fails stops the script", "fail-next\nsync" + service, []string{"injected fault"}},
		{"a Sync that should fail stops the script if it does not", "! sync" + service, []string{"unexpected success"}},
		{"an unknown kind of object is named", "set pod.yaml" + service, []string{`pod.yaml: document 1: not a Kubernetes object: Pod without an apiVersion`}},
		{"set needs a file", "set" + service, []string{"usage: set FILE [FILE ...]"}},
		{"a file that is missing is named", "set other.yaml" + service, []string{"other.yaml"}},
		{"delete needs a kind and a name", "delete service" + service, []string{"usage: delete KIND [NAMESPACE/]NAME"}},
		{"delete names a kind that it does not know", "delete pod web" + service, []string{`unknown kind "pod"`}},
		{"dump needs something to dump", "dump" + service, []string{"no Options.Dump"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := runScript(t, tt.script, Options{})
			for _, want := range tt.want {
				assert.Contains(t, got, want)
			}
		})
	}
	got, _ := runScript(t, "set service.yaml"+service, Options{State: localstate.Options{Families: []model.Family{5}}})
	assert.Contains(t, got, "fakemodel: invalid options", "what ends a test ends the script")

	got, _ = runScript(t, "set service.yaml\nsync\nstdout SetService"+service, Options{})
	assert.Empty(t, got, "a script that is right does not fail")
}

func TestScriptsAreUpdated(t *testing.T) {
	t.Setenv(updateVariable, "1")
	got, after := runScript(t, "set service.yaml\nsync\ncmp stdout want.txt"+service+"-- want.txt --\nold\n", Options{})
	assert.Empty(t, got)
	assert.Contains(t, after, "-- want.txt --\nSetNode n1\nSetService default/web")
	assert.NotContains(t, after, "old")
}
