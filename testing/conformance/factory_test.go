package conformance

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A result names the features that an author can remove from Lacks.
func TestFeaturesAreNamedAsTheirConstants(t *testing.T) {
	source, err := parser.ParseFile(token.NewFileSet(), "factory.go", nil, 0)
	require.NoError(t, err)
	features := 0
	for _, d := range source.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Feature" {
				features++
				assert.Equal(t, strconv.Quote(v.Names[0].Name), v.Values[0].(*ast.BasicLit).Value)
			}
		}
	}
	assert.Greater(t, features, 10)
}
