package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// flowFlags are the flags for the question what happens to a packet. Those for the proxy's configuration have the names
// of kube-proxy's flags.
type flowFlags struct {
	question, url                                string
	detectMode, clusterCIDRs, bridge, interfaces string
	mode, nodePorts                              string

	detect localstate.DetectLocal // of the flags, once they are validated
	config oracle.Config
}

func (f *flowFlags) register(set *flag.FlagSet) {
	set.StringVar(&f.question, "flow", "",
		"say what happens to a `packet`, and end: SOURCE -> ADDRESS:PORT[/PROTOCOL], where "+
			"SOURCE is pod ADDRESS, pod NAMESPACE/NAME, node, or outside ADDRESS")
	set.StringVar(&f.url, "url", "", "ask the proxy that serves package page at this `URL`, for --flow")
	set.StringVar(&f.detectMode, "detect-local-mode", "",
		"how the proxy tells local pods, for --flow: `mode` ClusterCIDR, "+
			"NodeCIDR, BridgeInterface or InterfaceNamePrefix (default: ClusterCIDR if --cluster-cidr is given, else not at all)")
	set.StringVar(&f.clusterCIDRs, "cluster-cidr", "", "the `CIDRs` of the pods in the cluster, for ClusterCIDR")
	set.StringVar(&f.bridge, "pod-bridge-interface", "",
		"the `name` of the bridge that pods are behind, for BridgeInterface")
	set.StringVar(&f.interfaces, "pod-interface-name-prefix", "",
		"the `prefix` of the pods' interfaces, for InterfaceNamePrefix")
	set.StringVar(&f.nodePorts, "nodeport-addresses", "",
		"the `list` of CIDRs and keywords (primary, localhost, all) whose addresses serve node ports, for --flow "+
			"(default: primary in mode nftables, else all)")
	set.StringVar(&f.mode, "proxy-mode", "",
		"the `mode` of the proxy, on which the default of --nodeport-addresses depends, for --flow; node ports on "+
			"127.0.0.1 count as not served in any")
}

// asked reports whether there is a question.
func (f *flowFlags) asked() bool { return f.question != "" }

// parse parses the flags about the node.
func (f *flowFlags) parse() error {
	if f.url != "" && !f.asked() {
		return errors.New("--url is for --flow")
	}
	var errs []error
	var err error
	errs = append(errs, f.parseNodePorts())
	switch mode := f.detectMode; {
	case mode == "ClusterCIDR" || mode == "" && f.clusterCIDRs != "":
		f.detect.ClusterCIDRs, err = parseCIDRs(f.clusterCIDRs)
		errs = append(errs, err)
	case mode == "NodeCIDR":
		f.detect.NodeCIDR = true
	case mode == "BridgeInterface" && f.bridge != "":
		f.detect.Bridge = f.bridge
	case mode == "InterfaceNamePrefix" && f.interfaces != "":
		f.detect.InterfacePrefix = f.interfaces
	case mode == "BridgeInterface" || mode == "InterfaceNamePrefix":
		errs = append(errs, fmt.Errorf("--detect-local-mode %s needs the name of the interfaces", mode))
	case mode != "":
		errs = append(errs, fmt.Errorf("--detect-local-mode %q is not one of ClusterCIDR, NodeCIDR, BridgeInterface, "+
			"InterfaceNamePrefix", mode))
	}
	return errors.Join(errs...)
}

func (f *flowFlags) parseNodePorts() error {
	modes := []v1alpha2.ProxyMode{"", v1alpha2.ProxyModeIPTables, v1alpha2.ProxyModeIPVS, v1alpha2.ProxyModeNFTables,
		v1alpha2.ProxyModeKernelspace}
	c := &v1alpha2.KubeProxyConfiguration{Mode: v1alpha2.ProxyMode(f.mode)}
	if !slices.Contains(modes, c.Mode) {
		return fmt.Errorf("--proxy-mode %q is not one of %v", f.mode, modes[1:])
	}
	if f.nodePorts != "" {
		for text := range strings.SplitSeq(f.nodePorts, ",") {
			c.NodePortAddresses = append(c.NodePortAddresses, strings.TrimSpace(text))
		}
	}
	choice, err := config.NodePortAddresses(c)
	f.config.NodePortCIDRs, f.config.NodePortPrimary = choice.CIDRs, choice.Primary
	return err
}

func parseCIDRs(list string) (cidrs []netip.Prefix, err error) {
	for text := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--cluster-cidr: %w", err)
		}
		cidrs = append(cidrs, p.Masked())
	}
	return cidrs, nil
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

// askProxy asks a running proxy.
func (f *flowFlags) askProxy(ctx context.Context, print printFunc, out io.Writer) error {
	address := strings.TrimSuffix(f.url, "/") + "/api/flow?q=" + url.QueryEscape(f.question)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", f.url, response.Status, strings.TrimSpace(string(body)))
	}
	var answer oracle.Answer
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s: this is not an answer of package page: %w", f.url, err)
	}
	return print(out, &answer)
}
