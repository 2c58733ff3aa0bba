package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strings"
	"testing/fstest"
	"time"

	"sigs.k8s.io/kube-proxy-lib/watch"
)

// embedded has a cluster and changes to it: each folder in steps has files that replace the cluster's or, with the
// suffix ".deleted", delete them. The folder's name describes the step.
//
//go:embed cluster steps
var embedded embed.FS

// script runs the steps.
type script struct {
	files   *watch.Files
	cluster fstest.MapFS
	steps   []string
	played  bool // at least once
}

func newScript() (*script, error) {
	s := &script{cluster: fstest.MapFS{}}
	if err := s.apply("cluster"); err != nil {
		return nil, err
	}
	steps, err := embedded.ReadDir("steps") // sorted by name
	if err != nil {
		return nil, err
	}
	for _, step := range steps {
		s.steps = append(s.steps, step.Name())
	}
	s.files, err = watch.NewFilesFS(s.cluster)
	return s, err
}

// apply copies a folder's files over the cluster's. It replaces files atomically, because a source may still be reading
// the old ones.
func (s *script) apply(folder string) error {
	next := maps.Clone(s.cluster)
	files, err := embedded.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := fs.ReadFile(embedded, path.Join(folder, f.Name()))
		if err != nil {
			return err
		}
		if name, ok := strings.CutSuffix(f.Name(), ".deleted"); ok {
			delete(next, name)
			continue
		}
		next[f.Name()] = &fstest.MapFile{Data: data}
	}
	s.cluster = next
	return nil
}

// play runs all steps, starting from the original cluster, and prints the table again at the end.
func (s *script) play(ctx context.Context, screen *screen, pause time.Duration) {
	wait := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
			return true
		}
	}
	fmt.Fprintln(screen.out)
	if s.played {
		s.cluster = fstest.MapFS{}
		if err := s.apply("cluster"); err != nil {
			fmt.Fprintln(screen.out, "  ", err)
			return
		}
		fmt.Fprintln(screen.out, "0 and once more from the beginning")
		s.files.SetFS(s.cluster)
	}
	s.played = true
	for _, step := range s.steps {
		if !wait() {
			return
		}
		fmt.Fprintln(screen.out, strings.ReplaceAll(step, "-", " "))
		before := screen.syncs.Load()
		if err := s.apply(path.Join("steps", step)); err != nil {
			fmt.Fprintln(screen.out, "  ", err)
			return
		}
		s.files.SetFS(s.cluster)
		if !wait() {
			return
		}
		if screen.syncs.Load() == before {
			fmt.Fprintln(screen.out, "  (nothing changes for this node)")
		}
	}
	fmt.Fprint(screen.out, "\nThe routing table at the end:\n\n")
	if err := screen.printTable(screen.out); err != nil {
		fmt.Fprintln(screen.out, err)
	}
}
