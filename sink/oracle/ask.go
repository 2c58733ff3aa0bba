package oracle

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Answer is the answer to a question about a packet.
type Answer struct {
	// Notes state assumptions about the flow, and what else the reader should know.
	Notes   []string `json:"notes,omitempty"`
	Outcome Outcome  `json:"outcome"`
}

// Ask answers a question of the form
//
//	SOURCE -> ADDRESS:PORT[/PROTOCOL]
//
// where the protocol is TCP unless it is given, and SOURCE is one of
//
//	pod ADDRESS            a pod; which node it is on follows from the state
//	pod NAMESPACE/NAME     a pod that is an endpoint of some service, where the state knows the names of pods
//	local pod ADDRESS      a pod of this node, whatever the state says
//	remote pod ADDRESS     a pod of another node
//	node [ADDRESS]         a process of the node; without an address its primary one
//	outside ADDRESS        anything else; "external" means the same
//
// The error says what is wrong with the question.
func (o *Oracle) Ask(question string) (*Answer, error) {
	from, to, ok := strings.Cut(question, "->")
	if !ok {
		return nil, fmt.Errorf("flow %q is not of the form \"SOURCE -> ADDRESS:PORT/PROTOCOL\"", question)
	}
	a := &Answer{}
	f, err := parseDestination(strings.TrimSpace(to))
	if err == nil {
		err = o.parseSource(strings.Join(strings.Fields(from), " "), &f, a)
	}
	if err != nil {
		return nil, fmt.Errorf("flow %q: %w", question, err)
	}
	a.Outcome, err = o.Expect(f)
	return a, err
}

func parseDestination(text string) (Flow, error) {
	address, protocol, given := strings.Cut(text, "/")
	f := Flow{Protocol: model.TCP}
	var err error
	if f.Destination, err = netip.ParseAddrPort(address); err != nil {
		return f, fmt.Errorf("the destination is not ADDRESS:PORT: %w", err)
	}
	if given {
		f.Protocol, err = model.ParseProtocol(strings.ToUpper(protocol))
	}
	return f, err
}

// parseSource fills in the source of a flow whose destination is known.
func (o *Oracle) parseSource(text string, f *Flow, a *Answer) error {
	kind, rest, _ := strings.Cut(text, " ")
	var err error
	switch kind {
	case "pod":
		return o.pod(rest, f, a)
	case "local", "remote":
		address, ok := strings.CutPrefix(rest, "pod ")
		if !ok {
			return fmt.Errorf("%q is not a source: say \"%s pod ADDRESS\"", text, kind)
		}
		f.From = map[string]SourceKind{"local": LocalPod, "remote": RemotePod}[kind]
		f.Source, err = parseSourceAddress(address)
	case "node":
		f.From = Node
		if rest != "" {
			f.Source, err = parseSourceAddress(rest)
		} else if f.Source = f.Destination.Addr(); !f.Source.IsLoopback() {
			f.Source = o.node.IP(f.Family())
			if !f.Source.IsValid() {
				return fmt.Errorf("the node has no %v address", f.Family())
			}
		}
	case "outside", "external":
		f.From = External
		if rest == "" {
			return fmt.Errorf("%q needs an address", kind)
		}
		f.Source, err = parseSourceAddress(rest)
	default:
		return fmt.Errorf("source %q is not one of pod, local pod, remote pod, node, outside", text)
	}
	return err
}

func parseSourceAddress(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, fmt.Errorf("the source has no address: %w", err)
	}
	return addr, nil
}

// pod finds out which pod is meant, and on which node it is.
func (o *Oracle) pod(text string, f *Flow, a *Answer) error {
	var endpoint *model.Endpoint
	if namespace, name, named := strings.Cut(text, "/"); named {
		if namespace == "" || name == "" {
			return fmt.Errorf("%q is not the NAMESPACE/NAME of a pod", text)
		}
		var err error
		if endpoint, err = o.endpointOf(text, f.Family()); err != nil {
			return err
		}
		f.Source = endpoint.Target.Addr()
	} else {
		var err error
		if f.Source, err = parseSourceAddress(text); err != nil {
			return fmt.Errorf("a pod is named by its address or by NAMESPACE/NAME: %w", err)
		}
		for ep := range o.endpoints {
			if ep.Target.Addr() == f.Source {
				endpoint = ep
				break
			}
		}
	}
	f.From = o.kindOfPod(endpoint, f.Source, a)
	return nil
}

// kindOfPod returns the kind of source that a pod is. endpoint is one of the pod's endpoints, or nil if none is known.
func (o *Oracle) kindOfPod(endpoint *model.Endpoint, addr netip.Addr, a *Answer) SourceKind {
	note := func(format string, args ...any) { a.Notes = append(a.Notes, fmt.Sprintf(format, args...)) }
	switch {
	case o.isHostAddress(addr):
		note("%v is an address of the node: a pod in the host's network counts as the node", addr)
		return Node
	case endpoint != nil && endpoint.Local:
		return LocalPod
	case endpoint != nil:
		on := "another node"
		if endpoint.Node != "" {
			on = "node " + endpoint.Node
		}
		note("the pod is on %s, whose proxy sees the packet first; this is what happens if it comes to this node as it is",
			on)
		return RemotePod
	case contain(o.node.PodCIDRs, addr):
		return LocalPod
	case slices.ContainsFunc(o.node.PodCIDRs, func(p netip.Prefix) bool {
		return model.FamilyOf(p.Addr()) == model.FamilyOf(addr)
	}):
		note("%v is not in the pod CIDRs of this node: assuming a pod of another node", addr)
		return RemotePod
	}
	note("%v is unknown: assuming a pod of this node; say \"remote pod\" if it is not", addr)
	return LocalPod
}

// endpointOf returns an endpoint of a pod that is known by name.
func (o *Oracle) endpointOf(pod string, family model.Family) (*model.Endpoint, error) {
	named, otherFamily := false, false
	for ep := range o.endpoints {
		name := podOf(ep)
		named = named || name != ""
		if name == pod && ep.Family() == family {
			return ep, nil
		}
		otherFamily = otherFamily || name == pod
	}
	switch {
	case otherFamily:
		return nil, fmt.Errorf("pod %s has no %v address among the endpoints of services", pod, family)
	case !named:
		return nil, errors.New("pod names are not known here: give the pod's address")
	}
	return nil, fmt.Errorf("pod %s is not among the endpoints that this node uses: give its address", pod)
}

// String returns the answer as text for people.
func (a *Answer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n", a.Outcome.Flow)
	for _, n := range a.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	a.Outcome.print(&b)
	for _, also := range a.Outcome.AlsoAllowed {
		b.WriteString("or, equally right:\n")
		also.print(&b)
	}
	return b.String()
}

// print writes the verdict, the endpoints in a table, and the reasons.
func (o *Outcome) print(b *strings.Builder) {
	fmt.Fprintf(b, "  %v\n", o.Verdict)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, d := range o.Endpoints {
		nat, where := "keeps the source address", ""
		if d.SourceNAT {
			nat = "masqueraded"
		}
		if d.Pod != "" {
			where = "pod " + d.Pod
		}
		if d.Node != "" {
			where = strings.TrimSpace(where + " on node " + d.Node)
		}
		cells := []string{d.Endpoint.String(), nat}
		if where != "" {
			cells = append(cells, where)
		}
		fmt.Fprintf(w, "    %s\n", strings.Join(cells, "\t"))
	}
	_ = w.Flush() // a Builder does not fail
	b.WriteString("  because\n")
	for _, r := range o.Reasons {
		fmt.Fprintf(b, "    %v\n", r)
	}
}
