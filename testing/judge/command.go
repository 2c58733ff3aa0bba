package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// program describes the proxy to the suite.
func (o *options) program() (conformance.Proxy, error) {
	p := conformance.Proxy{Open: o.open, Configures: strings.Contains(o.proxy, "{flags}"),
		Cleans: o.cleanup != "", Breaks: o.breaks != ""}
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
	for _, name := range strings.FieldsFunc(o.lacks, func(r rune) bool { return r == ',' || r == ' ' }) {
		p.Lacks = append(p.Lacks, conformance.Feature(name))
	}
	for _, c := range []string{o.proxy, o.cleanup, o.breaks} {
		if _, err := replace(c, nil); err != nil {
			return p, err
		}
	}
	return p, nil
}

// assumption parses --assume.
func assumption(text string) (c conformance.Configuration, err error) {
	c.Local = conformance.NodeCIDR
	c.NodePorts.Primary = true
	for _, part := range strings.Split(text, ",") {
		switch part {
		case "detect=node-cidr":
		case "detect=cluster-cidr":
			c.Local = conformance.ClusterCIDR
		case "detect=none":
			c.Local = conformance.NoLocalMode
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
func parseSizes(text string) (sizes []conformance.Size, err error) {
	for _, part := range strings.Split(text, ",") {
		services, endpoints, found := strings.Cut(strings.TrimSpace(part), "x")
		var size conformance.Size
		var err1, err2 error
		size.Services, err1 = strconv.Atoi(services)
		size.Endpoints, err2 = strconv.Atoi(endpoints)
		if !found || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%q is no size: 1000x10 is one", part)
		}
		if err := size.Validate(); err != nil {
			return nil, err
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// placeholders are what is replaced in commands, with what each stands for.
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

// replace replaces the placeholders of a command. Words in braces that are none of them are an error, as they would be
// typing errors; with values == nil nothing else is checked.
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
			b.WriteString("{") // of the shell
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

// kubeProxyFlags are kube-proxy's flags for a configuration.
func kubeProxyFlags(c conformance.Configuration) string {
	var flags []string
	add := func(name, value string) { flags = append(flags, "--"+name+"="+value) }
	switch c.Local {
	case conformance.NoLocalMode: // what ClusterCIDR is without a range
		add("detect-local-mode", string(conformance.ClusterCIDR))
	case conformance.ClusterCIDR:
		add("detect-local-mode", string(c.Local))
		add("cluster-cidr", join(c.ClusterCIDRs))
	case conformance.BridgeInterface:
		add("detect-local-mode", string(c.Local))
		add("pod-bridge-interface", c.Bridge)
	case conformance.InterfaceNamePrefix:
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
