package api

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// systems are those that the library is built for. What not all of them have is marked.
func systems() []string { return []string{"linux", "windows", "darwin"} }

// surface returns the exported names of the packages below a folder that another program can import: a line for each,
// with its type. Names of parameters do not count, and nor do comments, values and unexported fields. An interface is
// one line, because another method breaks its implementers; a struct has a line for each field.
func surface(root string) ([]string, error) {
	on := map[string]map[string]bool{} // the systems that have a line
	err := filepath.WalkDir(root, func(folder string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(root, folder)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(relative)
		if hidden(root, folder) || unpromised(name) {
			return filepath.SkipDir
		}
		for _, system := range systems() {
			lines, err := packageSurface(folder, name, system)
			if err != nil {
				return err
			}
			for _, line := range lines {
				if on[line] == nil {
					on[line] = map[string]bool{}
				}
				on[line][system] = true
			}
		}
		return nil
	})
	var all []string
	for line, has := range on {
		if len(has) < len(systems()) {
			var list []string
			for _, s := range systems() {
				if has[s] {
					list = append(list, s)
				}
			}
			line += " (" + strings.Join(list, ", ") + ")"
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return all, err
}

// hidden reports whether other modules can import nothing from a folder below root.
func hidden(root, folder string) bool {
	if folder == root {
		return false
	}
	base := filepath.Base(folder)
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return base == "internal" || base == "testdata" || strings.HasPrefix(base, ".") || err == nil
}

// unpromised reports whether VERSIONING.md promises nothing about a folder.
func unpromised(folder string) bool {
	return slices.Contains([]string{"cmd", "examples", "docs", "remote/v1", "testing/vm", "testing/wine"}, folder)
}

// packageSurface returns the lines of one package, as it is built for an operating system.
func packageSurface(folder, name, system string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	target := build.Default
	target.GOOS, target.GOARCH, target.CgoEnabled = system, "amd64", false
	var lines []string
	for _, e := range entries {
		file := e.Name()
		if e.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		if match, err := target.MatchFile(folder, file); err != nil || !match {
			if err != nil {
				return nil, err
			}
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(folder, file), nil,
			parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if parsed.Name.Name == "main" {
			return nil, nil
		}
		for _, l := range fileSurface(parsed) {
			lines = append(lines, name+": "+l)
		}
	}
	return lines, nil
}

func fileSurface(file *ast.File) []string {
	var lines []string
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if l := funcLine(d); l != "" {
				lines = append(lines, l)
			}
		case *ast.GenDecl:
			var repeated ast.Expr // the type of a constant that does not say its own
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					lines = append(lines, typeLines(s)...)
				case *ast.ValueSpec:
					if s.Type != nil || len(s.Values) > 0 {
						repeated = s.Type
					}
					lines = append(lines, valueLines(d.Tok, s, repeated)...)
				}
			}
		}
	}
	return lines
}

func funcLine(d *ast.FuncDecl) string {
	if !d.Name.IsExported() {
		return ""
	}
	if d.Recv == nil {
		return "func " + d.Name.Name + typeParams(d.Type.TypeParams) + signature(d.Type)
	}
	receiver := text(d.Recv.List[0].Type)
	if !ast.IsExported(strings.TrimPrefix(receiver, "*")) {
		return ""
	}
	return "method (" + receiver + ") " + d.Name.Name + signature(d.Type)
}

func typeLines(s *ast.TypeSpec) []string {
	if !s.Name.IsExported() {
		return nil
	}
	head := "type " + s.Name.Name + typeParams(s.TypeParams)
	if s.Assign.IsValid() {
		head += " ="
	}
	switch t := s.Type.(type) {
	case *ast.StructType:
		lines := []string{head + " struct"}
		for _, field := range t.Fields.List {
			for _, name := range field.Names {
				if name.IsExported() {
					lines = append(lines, head+" struct, "+name.Name+" "+typeText(field.Type))
				}
			}
			if len(field.Names) == 0 {
				lines = append(lines, head+" struct, embedded "+typeText(field.Type))
			}
		}
		return lines
	case *ast.InterfaceType:
		return []string{head + " " + typeText(t)}
	}
	return []string{head + " " + typeText(s.Type)}
}

func valueLines(tok token.Token, s *ast.ValueSpec, constType ast.Expr) []string {
	var lines []string
	for _, name := range s.Names {
		if !name.IsExported() {
			continue
		}
		line := tok.String() + " " + name.Name
		if t := s.Type; t != nil {
			line += " " + typeText(t)
		} else if tok == token.CONST && constType != nil {
			line += " " + typeText(constType)
		}
		lines = append(lines, line)
	}
	return lines
}

// typeText writes a type in one line, without names of parameters.
func typeText(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.FuncType:
		return "func" + signature(t)
	case *ast.InterfaceType:
		var methods []string
		for _, m := range t.Methods.List {
			for _, name := range m.Names {
				if f, ok := m.Type.(*ast.FuncType); ok {
					methods = append(methods, name.Name+signature(f))
				}
			}
			if len(m.Names) == 0 {
				methods = append(methods, typeText(m.Type))
			}
		}
		slices.Sort(methods)
		return "interface { " + strings.Join(methods, "; ") + " }"
	}
	return text(e)
}

// signature writes parameters and results, without their names.
func signature(t *ast.FuncType) string {
	s := "(" + strings.Join(types(t.Params), ", ") + ")"
	switch results := types(t.Results); len(results) {
	case 0:
	case 1:
		s += " " + results[0]
	default:
		s += " (" + strings.Join(results, ", ") + ")"
	}
	return s
}

func types(list *ast.FieldList) []string {
	if list == nil {
		return nil
	}
	var all []string
	for _, f := range list.List {
		for range max(len(f.Names), 1) {
			all = append(all, typeText(f.Type))
		}
	}
	return all
}

func typeParams(list *ast.FieldList) string {
	if list == nil {
		return ""
	}
	return "[" + strings.Join(types(list), ", ") + "]"
}

func text(e ast.Expr) string {
	var b bytes.Buffer
	_ = printer.Fprint(&b, token.NewFileSet(), e) // into memory, from what has been parsed
	return strings.Join(strings.Fields(b.String()), " ")
}
