package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// flowFlags are the flags for the question what happens to a packet. Those for the proxy's configuration have the names
// of kube-proxy's flags.
type flowFlags struct {
	question, url           string
	proxy                   v1alpha2.KubeProxyConfiguration
	clusterCIDRs, nodePorts string // of proxy, as lists with commas

	detect localstate.DetectLocal // of the flags, once they are validated
	config oracle.Config
}

func (f *flowFlags) register(set *flag.FlagSet) {
	set.StringVar(&f.question, "flow", "",
		"say what happens to a `packet`, and exit: SOURCE -> ADDRESS:PORT[/PROTOCOL], where "+
			"SOURCE is pod ADDRESS, pod NAMESPACE/NAME, node, or outside ADDRESS")
	set.StringVar(&f.url, "url", "", "for --flow and --explain: ask the proxy whose page is at this `URL`")
	set.StringVar((*string)(&f.proxy.DetectLocalMode), "detect-local-mode", "",
		"for --flow: how the proxy detects local pods, `mode` ClusterCIDR, NodeCIDR, "+
			"BridgeInterface or InterfaceNamePrefix (default: ClusterCIDR if --cluster-cidr is given, else none)")
	set.StringVar(&f.clusterCIDRs, "cluster-cidr", "", "pod `CIDRs` of the cluster, for mode ClusterCIDR")
	set.StringVar(&f.proxy.DetectLocal.BridgeInterface, "pod-bridge-interface", "",
		"`name` of the bridge that pods are connected to, for mode BridgeInterface")
	set.StringVar(&f.proxy.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "",
		"name `prefix` of pod interfaces, for mode InterfaceNamePrefix")
	set.StringVar(&f.nodePorts, "nodeport-addresses", "",
		"the `list` of CIDRs and keywords (primary, localhost, all) whose addresses serve node ports, for --flow "+
			"(default: primary in mode nftables, else all)")
	set.StringVar((*string)(&f.proxy.Mode), "proxy-mode", "",
		"the `mode` of the proxy, on which the default of --nodeport-addresses depends, for --flow; node ports on "+
			"127.0.0.1 count as not served in any")
}

// asked reports whether there is a question.
func (f *flowFlags) asked() bool { return f.question != "" }

// parse parses the flags about the node.
func (f *flowFlags) parse() error {
	c, modes := &f.proxy, []v1alpha2.ProxyMode{v1alpha2.ProxyModeIPTables, v1alpha2.ProxyModeIPVS,
		v1alpha2.ProxyModeNFTables, v1alpha2.ProxyModeKernelspace}
	switch mode, names := c.DetectLocalMode, c.DetectLocal; {
	case c.Mode != "" && !slices.Contains(modes, c.Mode):
		return fmt.Errorf("--proxy-mode %q is not one of %v", c.Mode, modes)
	case mode == v1alpha2.LocalModeBridgeInterface && names.BridgeInterface == "",
		mode == v1alpha2.LocalModeInterfaceNamePrefix && names.InterfaceNamePrefix == "":
		return fmt.Errorf("--detect-local-mode %s needs the name of the interfaces", mode)
	}
	c.DetectLocal.ClusterCIDRs, c.NodePortAddresses = split(f.clusterCIDRs), split(f.nodePorts)
	state, _, _, err := config.StateOptions(c, "", config.NodeIPs{Primary: model.IPv4, Families: model.Families()})
	if err != nil {
		return fmt.Errorf("--detect-local-mode, --cluster-cidr: %w", err)
	}
	f.detect = state.DetectLocal
	choice, err := config.NodePortAddresses(c)
	f.config.NodePortCIDRs, f.config.NodePortPrimary = choice.CIDRs, choice.Primary
	return err
}

// split returns the elements of a list with commas.
func split(list string) (elements []string) {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); list != "" {
			elements = append(elements, text)
		}
	}
	return elements
}

// snapshotPrinter prints a state, or an answer about it.
type snapshotPrinter func(io.Writer, *sink.Snapshot) error

// printer returns the function that prints the answer or, if there is no question, the state.
func (f *flowFlags) printer(print printFunc) snapshotPrinter {
	return func(out io.Writer, s *sink.Snapshot) error {
		if !f.asked() {
			return print(out, stateOf(s))
		}
		o, err := oracle.OfSnapshot(s, f.config)
		if err != nil {
			return err
		}
		answer, err := o.Ask(f.question)
		if err != nil {
			return fmt.Errorf("--flow: %w", err)
		}
		return print(out, answer)
	}
}

// detectsNothing reports whether the flags say nothing about how the proxy detects pods of the node.
func (f *flowFlags) detectsNothing() bool {
	return f.proxy.DetectLocalMode == "" && f.clusterCIDRs == ""
}

// askProxy asks a running proxy what happens to the packet.
func (f *flowFlags) askProxy(ctx context.Context, print printFunc, out io.Writer) error {
	var answer oracle.Answer
	if err := f.get(ctx, "/api/flow?q="+url.QueryEscape(f.question), &answer); err != nil {
		return err
	}
	return print(out, &answer)
}

// explainOfProxy asks a running proxy why it uses the endpoints of a service.
func (f *flowFlags) explainOfProxy(
	ctx context.Context, name model.ServiceName, print printFunc, out io.Writer,
) error {
	var e localstate.Explanation
	q := url.Values{"namespace": {name.Namespace}, "name": {name.Name}}
	if err := f.get(ctx, "/api/explain?"+q.Encode(), &e); err != nil {
		return err
	}
	return print(out, &e)
}

// get asks a running proxy for something.
func (f *flowFlags) get(ctx context.Context, path string, answer any) error {
	address := strings.TrimSuffix(f.url, "/") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("no answer: a larger --timeout waits longer")
		}
		return fmt.Errorf("--url %s: %w; is the proxy running, and was it started with --page?", f.url, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", f.url, response.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s: not a reply from a proxy's page: %w", f.url, err)
	}
	return nil
}
