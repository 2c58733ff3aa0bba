package preflight

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// environment has the variables of a container.
type environment struct {
	values  map[string]string
	unknown map[string]string // why a variable's value is not known
	secret  bool              // a Secret sets variables of any names
}

// replace replaces $(VARIABLE), and $$ by $, as the kubelet does in a container's command, its arguments and its
// variables. An unknown variable is an error.
func (e environment) replace(text string) (string, error) {
	reference := regexp.MustCompile(`\$\$|\$\([-._a-zA-Z0-9]+\)`)
	var failed error
	text = reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		value, err := e.value(strings.Trim(found, "$()"))
		failed = errors.Join(failed, err)
		return value
	})
	return text, failed
}

// value returns a variable's value.
func (e environment) value(name string) (string, error) {
	value, ok := e.values[name]
	if why := e.unknown[name]; why != "" {
		return "", fmt.Errorf("the value of variable %s is not known: %s", name, why)
	}
	if !ok {
		return "", fmt.Errorf("the value of variable %s is not known", name)
	}
	return value, nil
}

// shellScript returns the script that a command line gives to a shell, if it does.
func shellScript(words []string) (string, bool) {
	if len(words) < 3 || !slices.Contains([]string{"sh", "bash", "dash", "ash"}, path.Base(words[0])) {
		return "", false
	}
	for i, word := range words[1 : len(words)-1] {
		if strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") && strings.Contains(word, "c") {
			return words[i+2], true
		}
	}
	return "", false
}

// fromScript returns the arguments of the one call of the proxy in a shell's script.
func fromScript(script string, env environment) ([]string, error) {
	const instead = "give the proxy's flags or its configuration file to --from"
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, fmt.Errorf("its shell script: %w", err)
	}
	var calls []*syntax.CallExpr
	var unclear error
	syntax.Walk(file, func(n syntax.Node) bool {
		if call, ok := n.(*syntax.CallExpr); ok {
			is, err := isCall(file, call, env)
			if is {
				calls = append(calls, call)
			}
			unclear = cmp.Or(unclear, err)
		}
		return true
	})
	if unclear != nil {
		return nil, fmt.Errorf("its shell script may call %s with other arguments: %w: %s", proxyName, unclear, instead)
	}
	if len(calls) != 1 {
		return nil, fmt.Errorf("its shell script calls %s %d times: %s", proxyName, len(calls), instead)
	}
	words, err := expandCall(file, calls[0], env)
	if err != nil {
		return nil, fmt.Errorf("its shell script: %w: %s", err, instead)
	}
	args, _ := afterProgram(words)
	return args, nil
}

// isCall reports whether a command runs the proxy, directly or with a program that starts another one. It is an error
// if that depends on something that is not known.
func isCall(file *syntax.File, call *syntax.CallExpr, env environment) (bool, error) {
	words, known := make([]string, len(call.Args)), true
	for i, w := range call.Args {
		words[i] = static(w.Parts)
		known = known && !isOpen(words[i])
	}
	if is, ok := runs(words); is || known || ok {
		return is, mayHide(words)
	}
	words, err := expandCall(file, call, env)
	if err != nil {
		return false, err
	}
	is, _ := runs(words)
	return is, mayHide(words)
}

// runs reports whether the words of a command run the proxy. ok is false if other words in place of those that are
// not known may run it.
func runs(words []string) (is, ok bool) {
	if len(words) == 0 {
		return false, true // an assignment
	}
	wrappers := []string{"exec", "nsenter", "nohup", "nice", "ionice", "chrt", "env", "setsid", "timeout", "stdbuf",
		"time", "tini", "dumb-init", "go-runner", "command", "hyperkube", "sudo", "setpriv", "unshare", "chroot"}
	if !isProgram(words[0]) && !slices.Contains(wrappers, path.Base(words[0])) {
		return false, !isOpen(path.Base(words[0]))
	}
	_, is = afterProgram(words)
	return is, is
}

// mayHide returns an error for a command that runs a script in its words, which names the proxy.
func mayHide(words []string) error {
	script, ok := shellScript(words)
	if !ok && len(words) > 0 && slices.Contains([]string{"eval", "xargs"}, words[0]) {
		script, ok = strings.Join(words[1:], " "), true
	}
	if ok && strings.Contains(script, proxyName) {
		return fmt.Errorf("what %s runs is not followed", words[0])
	}
	return nil
}

// unknown stands for a part of a word that the script computes.
const unknown = "\x00"

func isOpen(word string) bool { return strings.Contains(word, unknown) }

// static returns what a word is without variables and the like, in whose place it has [unknown].
func static(parts []syntax.WordPart) string {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(p.Value)
		case *syntax.SglQuoted:
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			b.WriteString(static(p.Parts))
		default:
			b.WriteString(unknown)
		}
	}
	return b.String()
}

// expandCall expands the words of a command. Every variable in them must come from the container's environment or from
// an earlier top-level assignment of the script: what depends on conditions, loops, functions or input is unknown.
func expandCall(file *syntax.File, call *syntax.CallExpr, env environment) ([]string, error) {
	if err := followable(call); err != nil {
		return nil, err
	}
	values := maps.Clone(env.values)
	used := usedIn(call)
	config := &expand.Config{NoUnset: true, Env: expand.FuncEnviron(func(name string) string { return values[name] })}
	followed := map[*syntax.Assign]bool{}
	for _, stmt := range file.Stmts {
		if stmt.Pos().After(call.Pos()) {
			break
		}
		for _, a := range assignments(stmt) {
			followed[a] = true
			value, err := literal(config, a)
			if delete(values, a.Name.Value); err == nil { // where it is not known, its use is an error
				values[a.Name.Value] = value
			} else if used[a.Name.Value] {
				return nil, err
			}
			delete(env.unknown, a.Name.Value)
		}
	}
	var failed error
	unclear := func(name string) {
		if failed == nil && (name == "" || used[name]) {
			failed = fmt.Errorf("the value of variable %s cannot be followed", cmp.Or(name, "of any name"))
		}
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Assign:
			if !followed[n] && n.Name != nil {
				unclear(n.Name.Value)
			}
		case *syntax.WordIter:
			unclear(n.Name.Value)
		case *syntax.CallExpr:
			setters(n, unclear)
		}
		return true
	})
	for name := range used {
		if _, ok := values[name]; !ok && (env.unknown[name] != "" || env.secret) {
			_, failed = env.value(name)
		}
	}
	if failed != nil {
		return nil, failed
	}
	return expand.Fields(config, call.Args...)
}

// usedIn returns the variables that a call uses.
func usedIn(call *syntax.CallExpr) map[string]bool {
	used := map[string]bool{}
	for _, w := range call.Args {
		syntax.Walk(w, func(n syntax.Node) bool {
			if p, ok := n.(*syntax.ParamExp); ok {
				used[p.Param.Value] = true
			}
			return true
		})
	}
	return used
}

// followable returns an error if something uses what no assignment to a name of its own says: positional parameters,
// for which package expand has nothing, and not an error, names that are values, and elements of arrays.
func followable(n syntax.Node) (err error) {
	syntax.Walk(n, func(n syntax.Node) bool {
		if p, ok := n.(*syntax.ParamExp); ok && err == nil &&
			(p.Param == nil || !syntax.ValidName(p.Param.Value) || p.Excl || p.Index != nil) {
			var text strings.Builder
			_ = syntax.NewPrinter().Print(&text, n)
			err = fmt.Errorf("%s cannot be followed", text.String())
		}
		return true
	})
	return err
}

// assignments returns the assignments of a statement that does nothing else.
func assignments(stmt *syntax.Stmt) []*syntax.Assign {
	switch c := stmt.Cmd.(type) {
	case *syntax.CallExpr:
		if len(c.Args) == 0 {
			return c.Assigns
		}
	case *syntax.DeclClause:
		var list []*syntax.Assign
		for _, a := range c.Args {
			if a.Name != nil && !a.Naked {
				list = append(list, a)
			}
		}
		return list
	}
	return nil
}

// setters reports the variables that a command sets, by their names, "" for any.
func setters(call *syntax.CallExpr, report func(name string)) {
	if len(call.Args) == 0 {
		return
	}
	switch call.Args[0].Lit() {
	case "eval", "source", ".":
		report("")
	case "read", "getopts", "unset", "mapfile", "readarray", "printf":
		for _, w := range call.Args[1:] {
			if w.Lit() != "" {
				report(w.Lit())
			}
		}
	}
}

func literal(config *expand.Config, a *syntax.Assign) (string, error) {
	switch {
	case a.Append || a.Array != nil || a.Index != nil:
		return "", fmt.Errorf("the value of variable %s cannot be followed", a.Name.Value)
	case a.Value == nil:
		return "", nil
	}
	if err := followable(a.Value); err != nil {
		return "", err
	}
	return expand.Literal(config, a.Value)
}

// splitWords splits a line as a shell does, without variables.
func splitWords(line string) ([]string, error) {
	var words []*syntax.Word
	err := syntax.NewParser().Words(bytes.NewReader([]byte(line)), func(w *syntax.Word) bool {
		words = append(words, w)
		return true
	})
	if err != nil {
		return nil, err
	}
	return expand.Fields(&expand.Config{NoUnset: true, Env: expand.FuncEnviron(func(string) string { return "" })},
		words...)
}
