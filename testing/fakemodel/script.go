package fakemodel

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"sigs.k8s.io/kube-proxy-lib/internal/manifest"
)

// RunScripts runs every script (*.txtar) in a folder as a subtest, in parallel. A script is a file of package testscript
// with the cluster objects, as YAML, and the expected transcripts in it; newOptions is called for each, so that each has a
// dataplane of its own. Besides testscript's own commands (cmp, stdout, stderr, grep, and ! for what must fail) there are:
//
//	set FILE...              sets the cluster objects of YAML files
//	delete KIND [NS/]NAME    deletes a cluster object, for example: delete service default/web
//	sync                     puts in force what is new; stdout is the transcript. "! sync" must fail, stderr is the error
//	resync                   asks for a full resync; stdout is the transcript
//	fail-next                makes the next sync fail before the sink hears of it
//	restart                  makes a new sink and a new node-local state; the next sync tells everything
//	state                    writes all that the sink has been told to stdout, with the routes of every port
//	dump                     writes what the dataplane holds to stdout, see Options.Dump
//
// With FAKEMODEL_UPDATE=1 in the environment, cmp corrects the expected file inside the script instead of failing.
func RunScripts(t *testing.T, folder string, newOptions func(tb testing.TB) Options) {
	t.Helper()
	testscript.Run(t, scriptParams(t, folder, newOptions))
}

func scriptParams(parent testing.TB, folder string, newOptions func(tb testing.TB) Options) testscript.Params {
	return testscript.Params{
		Dir:           folder,
		UpdateScripts: updating(),
		Setup: func(env *testscript.Env) error {
			tb := &scriptTB{TB: parent}
			env.Values[scriptKey{}] = &script{tb: tb, opts: newOptions(tb)}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"set":       command((*script).set),
			"delete":    command((*script).delete),
			"sync":      command((*script).sync),
			"resync":    command((*script).resync),
			"fail-next": command((*script).failNext),
			"restart":   command((*script).restart),
			"state":     command((*script).state),
			"dump":      command((*script).dump),
		},
	}
}

// scriptKey is where testscript keeps a script's script.
type scriptKey struct{}

// script is one run of a script.
type script struct {
	tb     *scriptTB
	opts   Options
	driver *Driver
}

// scriptTB ends the script instead of the test that all scripts are in.
type scriptTB struct {
	testing.TB
	script *testscript.TestScript
}

func (t *scriptTB) Helper() {}

func (t *scriptTB) Fatalf(format string, args ...any) { t.script.Fatalf(format, args...) }

func (t *scriptTB) Context() context.Context { return context.Background() }

// command makes a command of a method. An error that it returns is the command's failure: expected after "!", and to be
// found on stderr.
func command(run func(s *script, ts *testscript.TestScript, args []string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		s := ts.Value(scriptKey{}).(*script)
		s.tb.script = ts
		if s.driver == nil {
			s.driver = NewDriver(s.tb, s.opts)
		}
		err := run(s, ts, args)
		if err != nil {
			fmt.Fprintln(ts.Stderr(), err)
		}
		switch {
		case err != nil && !neg:
			ts.Fatalf("%v", err)
		case err == nil && neg:
			ts.Fatalf("unexpected success")
		}
	}
}

func (s *script) set(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: set FILE [FILE ...]")
	}
	for _, file := range args {
		objects, err := ParseYAML([]byte(ts.ReadFile(file)))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, object := range objects {
			s.driver.Set(object)
		}
	}
	return nil
}

func (s *script) delete(_ *testscript.TestScript, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: delete KIND [NAMESPACE/]NAME")
	}
	for _, kind := range []string{"Service", "EndpointSlice", "Node", "ServiceCIDR"} {
		if !strings.EqualFold(kind, args[0]) {
			continue
		}
		object, _ := manifest.New(kind)
		if namespace, name, found := strings.Cut(args[1], "/"); found {
			object.SetNamespace(namespace)
			object.SetName(name)
		} else {
			object.SetName(args[1])
		}
		manifest.DefaultNamespace(object)
		s.driver.Delete(object)
		return nil
	}
	return fmt.Errorf("unknown kind %q: want Service, EndpointSlice, Node or ServiceCIDR", args[0])
}

func (s *script) sync(ts *testscript.TestScript, _ []string) error {
	err := s.driver.TrySync()
	writeLines(ts.Stdout(), s.driver.Transcript())
	return err
}

func (s *script) resync(ts *testscript.TestScript, _ []string) error {
	err := s.driver.wave(true)
	writeLines(ts.Stdout(), s.driver.Transcript())
	return err
}

func (s *script) failNext(*testscript.TestScript, []string) error {
	s.driver.FailNext(ErrFault)
	return nil
}

func (s *script) restart(*testscript.TestScript, []string) error {
	s.driver.Restart()
	s.driver.Transcript()
	return nil
}

func (s *script) state(ts *testscript.TestScript, _ []string) error {
	_, err := io.WriteString(ts.Stdout(), s.driver.State().String())
	return err
}

func (s *script) dump(ts *testscript.TestScript, _ []string) error {
	if s.opts.Dump == nil {
		return fmt.Errorf("dump: these scripts have no Options.Dump")
	}
	_, err := io.WriteString(ts.Stdout(), s.opts.Dump())
	return err
}

func writeLines(w io.Writer, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
}
