package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryExportedNameIsDocumented checks that in every package that others can import, the examples' included, each
// exported name has a comment. A type, a function and a method need their own. The names of a declaration in
// parentheses, of a struct and of an interface may share one as in Go's standard library: the comment above a line is
// for the lines that follow without a blank line between, and the comment above a group of constants or variables for
// the group. A comment behind a name is for that line alone. What an interface embeds is documented where it comes
// from.
func TestEveryExportedNameIsDocumented(t *testing.T) {
	packages, err := importable("../..")
	require.NoError(t, err)
	require.Contains(t, packages, "model")
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		fset := token.NewFileSet()
		for _, name := range packages[folder] {
			file, err := parser.ParseFile(fset, filepath.Join("../..", folder, name), nil, parser.ParseComments)
			require.NoError(t, err)
			for _, u := range undocumented(fset, file) {
				t.Errorf("%v: %s has no comment", fset.Position(u.pos), u.name)
			}
		}
	}
}

func TestUndocumented(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", `package p

// F is documented.
func F() {}
func Missing1() {}
func hidden() {}

// S is documented.
type S struct {
	// A and the next are what they are.
	A int
	B, c int

	Missing2 int
	D int // behind
	Missing3 func()
	e int
	T // embedded
	Missing4
	*pkg.Missing5

	// Inner has fields, too.
	Inner struct { Missing6 int }
}

type Missing7 struct {}
func (*Missing7) Missing8() {}
func (hidden) Unseen() {}

type ( // not a comment
	// T is documented.
	T int
	Missing9 int
)

// I is documented.
type I interface {
	// Do and Undo do.
	Do(n int)
	Undo()

	Missing10()
	T
	comparable
}

// Colours.
const (
	Red = iota

	Green
)

const (
	Missing11 = 1
	// One, and two.
	One = 2
	Two = 3

	Missing12, missing = 4, 5
	Three = 6 // three
)

// V is documented.
var V, W int
var Missing13, x int

// Deprecated: an alias needs one as well.
type Alias = T
`, parser.ParseComments)
	require.NoError(t, err)
	var got []string
	for _, u := range undocumented(fset, file) {
		got = append(got, u.name)
	}
	assert.Equal(t, []string{"Missing1", "S.Missing2", "S.Missing3", "S.Missing4", "S.Missing5", "S.Inner.Missing6",
		"Missing7", "Missing7.Missing8", "Missing9", "I.Missing10", "Missing11", "Missing12", "Missing13"}, got)
}

// importable returns the packages below a folder that another program can import, each with the files that are not
// generated, whatever systems they are for.
func importable(root string) (map[string][]string, error) {
	packages := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if hidden(root, file) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil || parsed.Name.Name == "main" || ast.IsGenerated(parsed) {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		packages[folder] = append(packages[folder], base)
		return nil
	})
	return packages, err
}

// name is an exported name, as in "Options.MinInterval", and where it is declared.
type name struct {
	name string
	pos  token.Pos
}

// undocumented returns the exported names of a file that no comment is for.
func undocumented(fset *token.FileSet, file *ast.File) []name {
	var all []name
	add := func(documented bool, prefix string, idents ...*ast.Ident) {
		for _, i := range idents {
			if i.IsExported() && !documented {
				all = append(all, name{prefix + i.Name, i.Pos()})
			}
		}
	}
	var typeNames func(prefix string, e ast.Expr)
	fields := func(prefix string, list *ast.FieldList, inStruct bool) {
		block := block{fset: fset}
		for _, f := range list.List {
			documented := block.covers(f, f.Doc, f.Comment)
			if len(f.Names) == 0 && inStruct {
				add(documented, prefix, typeName(f.Type))
			}
			add(documented, prefix, f.Names...)
			for _, i := range f.Names {
				if i.IsExported() {
					typeNames(prefix+i.Name+".", f.Type)
				}
			}
		}
	}
	typeNames = func(prefix string, e ast.Expr) {
		switch t := e.(type) {
		case *ast.StructType:
			fields(prefix, t.Fields, true)
		case *ast.InterfaceType:
			fields(prefix, t.Methods, false)
		}
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Doc != nil, "", d.Name)
			} else if r := typeName(d.Recv.List[0].Type); r.IsExported() {
				add(d.Doc != nil, r.Name+".", d.Name)
			}
		case *ast.GenDecl:
			block := block{fset: fset}
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					add(s.Doc != nil || d.Doc != nil && !d.Lparen.IsValid(), "", s.Name)
					if s.Name.IsExported() {
						typeNames(s.Name.Name+".", s.Type)
					}
				case *ast.ValueSpec:
					add(d.Doc != nil || block.covers(s, s.Doc, s.Comment), "", s.Names...)
				}
			}
		}
	}
	return all
}

// block follows the lines of a declaration: a comment above a line is for the next lines as well, up to a blank one.
type block struct {
	fset      *token.FileSet
	commented bool
	end       int // the line of the last
}

func (b *block) covers(n ast.Node, above, behind *ast.CommentGroup) bool {
	start := b.fset.Position(n.Pos()).Line
	b.commented = above != nil || b.commented && start == b.end+1
	b.end = b.fset.Position(n.End()).Line
	return b.commented || behind != nil
}

// typeName returns the name of a receiver's or an embedded field's type.
func typeName(e ast.Expr) *ast.Ident {
	switch t := e.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.ParenExpr:
		return typeName(t.X)
	case *ast.IndexExpr: // with a type argument
		return typeName(t.X)
	case *ast.IndexListExpr:
		return typeName(t.X)
	case *ast.SelectorExpr:
		return t.Sel
	}
	return e.(*ast.Ident) // nothing else compiles
}
