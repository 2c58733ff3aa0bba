package docs_test

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNamesOfTheLibraryExist: what pages say of packages, types and their members is in the API. Names of packages and
// types that the library does not have are those of others, and another test looks for those of tests.
func TestNamesOfTheLibraryExist(t *testing.T) {
	api := readAPI(t)
	otherNames := regexp.MustCompile(`(?m)^\|[^|\n]*`) // the first column of tables
	name := regexp.MustCompile(`(?:\b([a-z][a-z0-9]*)\.)?\b([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	n := 0
	for _, page := range markdown(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		text = fence.ReplaceAll(text, nil)
		if strings.Contains(page, "move-here") {
			text = otherNames.ReplaceAll(text, nil)
		}
		for _, span := range code.FindAllString(string(text), -1) {
			for _, m := range name.FindAllStringSubmatch(span, -1) {
				pkg, object, member := m[1], m[2], m[3]
				if strings.HasPrefix(object, "Test") || pkg != "" && !api.packages[pkg] ||
					pkg == "" && (member == "" || api.members[object] == nil) {
					continue
				}
				n++
				assert.True(t, pkg == "" || api.objects[pkg+"."+object], "%s: %s", page, m[0])
				assert.True(t, member == "" || api.has(object, member, nil), "%s: %s", page, m[0])
			}
		}
	}
	assert.Greater(t, n, 200)
}

// api is the exported names of the library.
type api struct {
	packages map[string]bool                // the last parts of their paths
	objects  map[string]bool                // as in "sink.Sink"
	members  map[string]map[string][]string // of types of a name: fields and methods, and the types that are embedded
}

// readAPI reads the record of the API.
func readAPI(t *testing.T) api {
	text, err := os.ReadFile("../internal/api/api.txt")
	require.NoError(t, err)
	a := api{map[string]bool{}, map[string]bool{}, map[string]map[string][]string{}}
	object := regexp.MustCompile(`^(?:const|func|var|type) (\w+)`)
	method := regexp.MustCompile(`^method \(\*?(\w+)[^)]*\) (\w+)`)
	field := regexp.MustCompile(`^type (\w+).* struct, (embedded )?\*?([\w.]+)`)
	inInterface := regexp.MustCompile(`[{;] ([\w.]+)`)
	add := func(of, name, embedded string) {
		if a.members[of] == nil {
			a.members[of] = map[string][]string{}
		}
		a.members[of][name] = append(a.members[of][name], embedded)
	}
	for line := range strings.Lines(string(text)) {
		pkg, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		pkg = path.Base(pkg)
		a.packages[pkg] = true
		if m := object.FindStringSubmatch(what); m != nil {
			a.objects[pkg+"."+m[1]] = true
		}
		if m := method.FindStringSubmatch(what); m != nil {
			add(m[1], m[2], "")
		}
		if m := field.FindStringSubmatch(what); m != nil {
			last := m[3][strings.LastIndex(m[3], ".")+1:]
			add(m[1], last, map[bool]string{true: last}[m[2] != ""])
		}
		if name, methods, found := strings.Cut(what, " interface {"); found {
			for _, m := range inInterface.FindAllStringSubmatch("{"+methods, -1) {
				last := m[1][strings.LastIndex(m[1], ".")+1:]
				add(strings.Fields(name)[1], last, last)
			}
		}
	}
	return a
}

// has reports whether a type has a member, its own or one of what it embeds. What is embedded may be of a type that the
// record lacks.
func (a api) has(object, member string, seen []string) bool {
	if a.members[object][member] != nil {
		return true
	}
	for _, embedded := range a.members[object] {
		for _, other := range embedded {
			if other == "" || slices.Contains(seen, other) {
				continue
			}
			if a.members[other] == nil || a.has(other, member, append(seen, other)) {
				return true
			}
		}
	}
	return false
}
