package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// program returns the suite's description of the proxy.
func (o *options) program() (program.Proxy, error) {
	p := program.Proxy{Open: o.open, Configures: strings.Contains(o.proxy, "{flags}"),
		Cleans: o.cleanup != "", Breaks: o.breaks != "", Outages: o.apiServer == ""}
	if o.assume != "" {
		if p.Configures {
			return p, fmt.Errorf("--assume: the command has {flags}, so it is configured as each case wants it")
		}
		c, err := assumption(o.assume)
		if err != nil {
			return p, fmt.Errorf("--assume: %w", err)
		}
		p.Assume = &c
	}
	p.Lacks = strings.FieldsFunc(o.lacks, func(r rune) bool { return r == ',' || r == ' ' })
	for _, c := range []string{o.proxy, o.cleanup, o.breaks} {
		if _, err := replace(c, nil); err != nil {
			return p, err
		}
	}
	return p, nil
}

// findPrograms returns an error if a command calls a program that does not exist.
func (o *options) findPrograms(ctx context.Context) error {
	return errors.Join(exists(ctx, o.proxy), exists(ctx, o.cleanup), exists(ctx, o.breaks))
}

// exists returns an error if a command calls a program that does not exist. A script of several commands may find or
// make it when it runs.
func exists(ctx context.Context, command string) error {
	file, err := syntax.NewParser().Parse(strings.NewReader(command), "")
	if err != nil {
		return nil //nolint:nilerr // the shell will say it
	}
	if len(file.Stmts) != 1 {
		return nil
	}
	call, ok := file.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok {
		return nil
	}
	words := call.Args
	if len(words) > 1 && words[0].Lit() == "exec" {
		words = words[1:]
	}
	before, ok := assignments(call)
	if !ok || len(words) == 0 {
		return nil
	}
	program := words[0].Lit()
	if program == "" || program[0] == '-' || strings.Contains(program, "{") { // "-": an option of exec
		return nil
	}
	if exec.CommandContext(ctx, "sh", "-c", before+`command -v -- "$1"`, "sh", program).Run() != nil {
		return fmt.Errorf("there is no program %q", program)
	}
	return nil
}

// assignments returns what a call assigns before it looks for its program, such as PATH, as a command of its own. ok is
// false if that is known only when the call runs.
func assignments(call *syntax.CallExpr) (command string, ok bool) {
	ok = true
	var b strings.Builder
	for _, a := range call.Assigns {
		syntax.Walk(a, func(n syntax.Node) bool {
			switch n.(type) {
			case *syntax.CmdSubst, *syntax.ProcSubst:
				ok = false
			}
			return true
		})
		if err := syntax.NewPrinter().Print(&b, &syntax.CallExpr{Assigns: []*syntax.Assign{a}}); err != nil {
			return "", false
		}
		b.WriteString("\n")
	}
	return b.String(), ok && !strings.Contains(b.String(), "{")
}

// assumption parses --assume.
func assumption(text string) (c program.Configuration, err error) {
	c.Local = program.NodeCIDR
	c.NodePorts.Primary = true
	for _, part := range strings.Split(text, ",") {
		switch part {
		case "detect=node-cidr":
		case "detect=cluster-cidr":
			c.Local = program.ClusterCIDR
		case "detect=none":
			c.Local = program.NoLocalMode
		case "nodeports=primary":
		case "nodeports=all":
			c.NodePorts = nodeaddr.Choice{}
		case "nodeports=localhost":
			c.NodePorts, c.LocalhostNodePorts = nodeaddr.Choice{}, true
		case "masquerade-all":
			c.MasqueradeAll = true
		default:
			return c, fmt.Errorf("unknown %q", part)
		}
	}
	return c, nil
}

// parseSizes parses --speed.
func parseSizes(text string) (sizes []program.Size, err error) {
	for _, part := range strings.Split(text, ",") {
		services, endpoints, found := strings.Cut(strings.TrimSpace(part), "x")
		var size program.Size
		var err1, err2 error
		size.Services, err1 = strconv.Atoi(services)
		size.Endpoints, err2 = strconv.Atoi(endpoints)
		if !found || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%q is not a size such as 1000x10", part)
		}
		if err := size.Validate(); err != nil {
			return nil, err
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// parseRates parses --churn.
func parseRates(text string) (rates []int, err error) {
	for _, part := range strings.Split(text, ",") {
		rate, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("%q is not a number of changes a second", part)
		}
		if err := judge.ValidRate(rate); err != nil {
			return nil, err
		}
		if slices.Contains(rates, rate) {
			return nil, fmt.Errorf("%d is given twice", rate)
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

// placeholders are the placeholders of commands, with an explanation of each.
func placeholders() []struct{ name, help string } {
	return []struct{ name, help string }{
		{"kubeconfig", "file for clients of the API server"},
		{"server", "URL of the API server"},
		{"node", "name of the node"},
		{"flags", "flags of kube-proxy that configure what a case is about: without it these cases are not run"},
		{"nodeIPs", "the node's addresses, one of each family"},
		{"podCIDRs", "ranges of the node's pods"},
		{"clusterCIDRs", "ranges of all pods"},
		{"serviceCIDRs", "ranges of cluster IPs"},
		{"bridge", "interface that the node's pods are behind"},
		{"dir", "folder that the proxy may write to"},
	}
}

func placeholderHelp() string {
	var b strings.Builder
	for _, p := range placeholders() {
		fmt.Fprintf(&b, "  {%s}\t%s\n", p.name, p.help)
	}
	return b.String()
}

// replace replaces the placeholders of a command. Unknown words in braces are an error, because they are probably
// misspelled. With values == nil it only checks the command.
func replace(command string, values map[string]string) (string, error) {
	known := placeholders()
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(command, "{")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || strings.TrimFunc(name, isLetter) != "" || name == "" || strings.HasSuffix(before, "$") {
			b.WriteString("{") // a brace of the shell
			command = rest
			continue
		}
		if !slices.ContainsFunc(known, func(p struct{ name, help string }) bool { return p.name == name }) {
			return "", fmt.Errorf("there is no {%s}; there are:\n%s", name, placeholderHelp())
		}
		b.WriteString(values[name])
		command = after
	}
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// kubeProxyFlags returns kube-proxy's flags for a configuration.
func kubeProxyFlags(c program.Configuration) string {
	var flags []string
	add := func(name, value string) { flags = append(flags, "--"+name+"="+value) }
	switch c.Local {
	case program.NoLocalMode: // ClusterCIDR without a range detects no pod
		add("detect-local-mode", string(program.ClusterCIDR))
	case program.ClusterCIDR:
		add("detect-local-mode", string(c.Local))
		add("cluster-cidr", join(c.ClusterCIDRs))
	case program.BridgeInterface:
		add("detect-local-mode", string(c.Local))
		add("pod-bridge-interface", c.Bridge)
	case program.InterfaceNamePrefix:
		add("detect-local-mode", string(c.Local))
		add("pod-interface-name-prefix", c.InterfacePrefix)
	default:
		add("detect-local-mode", string(c.Local))
	}
	if c.MasqueradeAll {
		add("masquerade-all", "true")
	}
	addresses := []string{}
	if c.NodePorts.Primary {
		addresses = append(addresses, "primary")
	}
	for _, p := range c.NodePorts.CIDRs {
		addresses = append(addresses, p.String())
	}
	if len(addresses) == 0 {
		addresses = []string{"0.0.0.0/0", "::/0"}
	}
	add("nodeport-addresses", strings.Join(addresses, ","))
	add("iptables-localhost-nodeports", fmt.Sprint(c.LocalhostNodePorts))
	if c.LoopbackProxy {
		add("feature-gates", "KubeProxyNFTablesLocalhostNodePorts=true")
	}
	return strings.Join(flags, " ")
}

func join[T interface{ ~[]E }, E fmt.Stringer](list T) string {
	var texts []string
	for _, e := range list {
		texts = append(texts, e.String())
	}
	return strings.Join(texts, ",")
}
