package preflight

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// maxExamples is the maximum number of differences of a kind that are printed as text.
const maxExamples = 3

// print prints the differences, and what was compared.
func (c *comparison) print(list []difference, failed []error) error {
	var compared, missing []string
	var parts []difference // what was not compared
	for _, node := range c.nodes {
		why := whyNotCompared(node, failed)
		if why == "" {
			compared = append(compared, node)
			continue
		}
		missing = append(missing, node)
		if c.Command.print != nil {
			list = append(list, difference{Object: "Node " + node, Nodes: []string{node}, NotCompared: why})
		}
	}
	if c.Command.print != nil {
		return c.Command.print(c.out, list)
	}
	var b strings.Builder
	for _, d := range list {
		if d.NotCompared != "" {
			parts = append(parts, d)
		}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(d difference) bool { return d.NotCompared != "" })
	for _, rule := range inGroups(list, func(d difference) string { return d.Rule + "\x00" + c.remedy(d) }) {
		c.printRule(&b, rule)
	}
	if len(list) == 0 && len(parts) == 0 && len(failed) == 0 {
		b.WriteString("no differences\n")
	}
	for _, d := range parts {
		fmt.Fprintf(&b, "NOT compared: %s: %s\n", c.where(d), d.NotCompared)
	}
	if len(missing) > 0 {
		fmt.Fprintf(&b, "NOT compared: %s.\n", nodes(missing))
	}
	from := "this kube-proxy"
	if !c.same {
		from = "kube-proxy"
	}
	fmt.Fprintf(&b, "Compared on %s: %s, served by %s in mode %s, and by this one in mode %s.\n",
		nodes(compared), count(len(c.services), "Service"), from, c.before.Configuration.Mode,
		c.after.Configuration.Mode)
	_, err := c.out.Write([]byte(b.String()))
	return err
}

func printJSON(out io.Writer, list any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(list)
}

// notCompared is why a node was not compared.
type notCompared struct {
	node string
	err  error
}

func (e *notCompared) Error() string {
	return fmt.Sprintf("node %s was not compared: %v", e.node, e.err)
}
func (e *notCompared) Unwrap() error { return e.err }

// whyNotCompared returns why a node was not compared, "" if it was.
func whyNotCompared(node string, failed []error) string {
	for _, err := range failed {
		e := (*notCompared)(nil)
		switch {
		case !errors.As(err, &e):
			return err.Error() // of all nodes
		case e.node == node:
			return e.err.Error()
		}
	}
	return ""
}

// remedy returns what keeps the earlier behaviour of a difference, "" if no setting does.
func (c *comparison) remedy(d difference) string {
	if d.lasting {
		return ""
	}
	how, known := c.remedies[d.Rule]
	if !known {
		how = remedy(d.Rule, c.before.Configuration, c.after.Configuration)
		c.remedies[d.Rule] = how
	}
	return how
}

// printRule prints the differences with one cause and one remedy.
func (c *comparison) printRule(b *strings.Builder, list []difference) {
	rule := list[0].Rule
	fmt.Fprintf(b, "%s: %s", cmp.Or(rule, "Other"), explain(rule))
	if n := countServices(list); n > 0 {
		fmt.Fprintf(b, ", %s", count(n, "Service"))
	}
	b.WriteString("\n")
	if how := c.remedy(list[0]); how != "" {
		fmt.Fprintf(b, "  To keep it: %s.\n", how)
	}
	for _, kind := range inGroups(list, difference.kind) {
		d := kind[0]
		if len(d.Senders) > 0 {
			fmt.Fprintf(b, "  From %s: %s; then %s\n", strings.Join(d.Senders, ", "), d.Before, d.After)
		} else {
			fmt.Fprintf(b, "  %s; then %s\n", d.Before, d.After)
		}
		shown := kind
		if len(kind) > maxExamples+1 {
			shown = kind[:maxExamples]
		}
		for _, d := range shown {
			fmt.Fprintf(b, "    %s\n", c.where(d))
		}
		if more := len(kind) - len(shown); more > 0 {
			fmt.Fprintf(b, "    and %d more, which -o json lists\n", more)
		}
	}
	b.WriteString("\n")
}

// countServices returns how many Services have one of these differences.
func countServices(list []difference) int {
	all := map[model.ServiceName]bool{}
	for _, d := range list {
		if d.service != (model.ServiceName{}) {
			all[d.service] = true
		}
	}
	return len(all)
}

// kind is the same for differences that vary only in the object and its address.
func (d difference) kind() string {
	return strings.Join(append([]string{d.Before, d.After}, d.Senders...), "\x00")
}

// where says for which object, and where, there is a difference.
func (c *comparison) where(d difference) string {
	text := d.Object
	if d.Destination != "" {
		text += " at " + d.Destination
	}
	if c.all {
		text += ", on " + nodes(d.Nodes)
	}
	if d.Connections != nil {
		text += fmt.Sprintf("; the node is tracking %s", count(*d.Connections, "connection"))
	}
	return text
}

// nodes lists the names of nodes, or the first and the number of the others.
func nodes(names []string) string {
	switch n := len(names); {
	case n == 0:
		return "no node"
	case n > 3:
		return fmt.Sprintf("%s and %d more nodes", strings.Join(names[:2], ", "), n-2)
	}
	return strings.Join(names, ", ")
}

// inGroups returns the differences in groups of the same key, the largest group first, groups of one size by key.
func inGroups(list []difference, key func(difference) string) (groups [][]difference) {
	byKey := map[string][]difference{}
	for _, d := range list {
		byKey[key(d)] = append(byKey[key(d)], d)
	}
	for _, group := range byKey {
		groups = append(groups, group)
	}
	slices.SortFunc(groups, func(a, b []difference) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(key(a[0]), key(b[0])))
	})
	return groups
}

// explain returns what a rule is about.
func explain(rule string) string {
	for _, e := range []struct{ rules, what string }{
		{"S3 to S5, S4", "malformed fields of objects"},
		{"S6", "external IPs"},
		{"S17", "endpoints that are listed more than once"},
		{"S22", "topology hints"},
		{"S25", "services without endpoints"},
		{"S26", "source ranges"},
		{"S27, S58", "traffic policy Local"},
		{"S28, S29, S30", "which source address endpoints see"},
		{"S32", "session affinity"},
		{"S33", "ports and addresses that no service has"},
		{"S35", "which addresses serve node ports"},
		{"S36, S36a", "node ports on loopback addresses"},
		{"S38", "health checks of load balancers"},
		{"S49", "IP families"},
		{"S57", "how endpoints are chosen"},
		{"S59", "addresses that several Services claim"},
		{"S60, frontend.Limits", "Services that are too large"},
		{"S63", "external IPs and VIPs that are other machines' addresses"},
		{"S65", "health checks at VIPs of the node"},
	} {
		if slices.Contains(strings.Split(e.rules, ", "), rule) {
			return e.what
		}
	}
	return "see docs/semantics.md"
}
