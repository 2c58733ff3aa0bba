package kubeproxy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLicences: the modules that the library's packages and the examples link can be used and redistributed under the
// same terms as this one. Each licence in a module's root has to be on a short list.
func TestLicences(t *testing.T) {
	folders := map[string]string{}
	for _, goos := range []string{"linux", "windows", "darwin"} {
		for _, p := range list(t, goos) {
			if p.Module != nil && p.Module.Path != module {
				folders[p.Module.Path] = p.Module.Dir
			}
		}
	}
	require.NotEmpty(t, folders)
	for name, folder := range folders {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		found := 0
		for _, e := range entries {
			if upper := strings.ToUpper(e.Name()); e.IsDir() || !strings.HasPrefix(upper, "LICEN") &&
				!strings.HasPrefix(upper, "COPYING") && !strings.HasPrefix(upper, "UNLICENSE") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, e.Name()))
			require.NoError(t, err)
			found++
			assert.NotEmpty(t, licences(string(text)), "%s: %s is no licence that is known to be fine", name, e.Name())
		}
		assert.NotZero(t, found, "%s has no licence", name)
	}
}

// licences returns the acceptable licences in a file, or nil if it contains any other. Each is recognized by a
// characteristic sentence.
func licences(text string) []string {
	text = strings.Join(strings.Fields(strings.ToLower(text)), " ")
	var known []string
	for _, l := range []struct{ name, sentence string }{
		{"Apache-2.0", "apache license version 2.0, january 2004"},
		{"BSD", "redistribution and use in source and binary forms, with or without modification, are permitted"},
		{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose"},
		{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
		{"MPL-2.0", "mozilla public license version 2.0"},
	} {
		if strings.Contains(text, l.sentence) {
			known = append(known, l.name)
		}
	}
	for _, sentence := range []string{
		"all advertising materials mentioning", // BSD with four clauses
		"gnu affero general public license", "gnu general public license", "gnu lesser general public license",
		"server side public license", "business source license", "commons clause",
	} {
		// The MPL names the licences that it is compatible with.
		if strings.Contains(text, sentence) && !slices.Equal(known, []string{"MPL-2.0"}) {
			return nil
		}
	}
	return known
}

func TestLicencesAreKnownByTheirText(t *testing.T) {
	own, err := os.ReadFile("LICENSE")
	require.NoError(t, err)
	const mit = "MIT License\n\nPermission is hereby granted, free of charge, to any person\nobtaining a copy of this"
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"our own":        {string(own), []string{"Apache-2.0"}},
		"lines wrapped":  {mit, []string{"MIT"}},
		"two in a file":  {mit + "\n\n" + string(own), []string{"Apache-2.0", "MIT"}},
		"a GPL":          {"GNU GENERAL PUBLIC LICENSE\n Version 2, June 1991", nil},
		"MIT or GPL":     {mit + "\nor the GNU General Public License", nil},
		"old BSD":        {"Redistribution and use ... All advertising materials mentioning features", nil},
		"an unknown one": {"You may do with this what you like, on Sundays.", nil},
		"empty":          {"", nil},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, licences(tc.text)) })
	}
}
