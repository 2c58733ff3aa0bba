package ci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// apt's sources name the mirror of Debian in several ways; {} is the folder that they are in.
func TestTheMirrorOfDebianIsFoundInTheSourcesOfApt(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  string // "" if there is none
	}{
		"one line": {map[string]string{"sources.list": "deb [signed-by=/x] http://a.example/debian bookworm main # main\n"},
			"http://a.example/debian"},
		"fields, after another one": {map[string]string{
			"sources.list.d/a.list": "deb https://b.example/apt sdk main\n",
			"sources.list.d/b.sources": "Types: deb\n# URIs: http://old.example/debian\n" +
				"URIs: http://a.example/debian-security\n\nURIs: http://a.example/debian/ http://c.example/debian\n"},
			"http://a.example/debian/"},
		"a file with URLs": {map[string]string{
			"sources.list.d/a.sources": "URIs: mirror+file:///none/debian.list\n\nURIs: mirror+file://{}/mirrors/debian\n",
			"mirrors/debian":           "# http://old.example/debian\nhttps://a.example/debian\tpriority:1\nhttps://c.example/debian\n"},
			"https://a.example/debian"},
		"none": {map[string]string{"sources.list": "# deb http://a.example/debian bookworm main\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range tc.files {
				path := filepath.Join(dir, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "{}", dir)), 0o644))
			}
			script := filepath.Join(dir, "script")
			require.NoError(t, os.WriteFile(script, []byte("#!/usr/bin/env bash\nset -euo pipefail\n"+
				". ../apt.bash\ndebian_mirror "+dir+"\n"), 0o755))
			out, err := exec.CommandContext(t.Context(), script).Output()
			assert.Equal(t, tc.want == "", err != nil, err)
			assert.Equal(t, tc.want, strings.TrimSuffix(string(out), "\n"))
		})
	}
}
