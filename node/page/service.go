package page

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// serviceDetails is what api/service returns.
type serviceDetails struct {
	Revision uint64            `json:"revision"`
	Name     model.ServiceName `json:"name"`
	// Service is the service as the backend received it, nil if it received none with this name.
	Service *model.Service `json:"service"`
	Summary *summary       `json:"summary,omitempty"`
	// Pictures show the paths of its traffic, for each port and family: the first ones, and MorePictures is the number
	// of others.
	Pictures     []picture `json:"pictures"`
	MorePictures int       `json:"morePictures,omitempty"`
	// Notes have further information: why it is skipped, ports that do not match, invalid addresses.
	Notes []string `json:"notes,omitempty"`
	// Rules are the backend's rules for it, and RulesError says why they are not available; both are empty if the
	// backend is not a [sink.Describer].
	Rules      string `json:"rules,omitempty"`
	RulesError string `json:"rulesError,omitempty"`
}

// picture shows the paths of the traffic to one port in one family.
type picture struct {
	Port     model.PortName `json:"port"`
	Family   string         `json:"family"`
	Topology string         `json:"topology,omitempty"`
	Ways     []way          `json:"ways"`
	// Groups are the endpoints, by the sets that they are in. Those that get no traffic come last.
	Groups []group `json:"groups"`
}

// way is a kind of traffic.
type way struct {
	From string `json:"from"`
	// To are the first addresses, like "10.96.0.10:53/UDP", and MoreTo is the number of others. Kind is their kind.
	To     []string `json:"to"`
	MoreTo int      `json:"moreTo,omitempty"`
	Kind   string   `json:"kind"`
	// Policy is where the traffic may go, Source what happens to its source address, Rule the rule that says so.
	Policy string `json:"policy"`
	Source string `json:"source"`
	Rule   string `json:"rule"`
	// Groups are the indices of the groups that it reaches. If there are none, Empty says what happens to it.
	Groups []int  `json:"groups"`
	Empty  string `json:"empty,omitempty"`
}

// group has the endpoints that are in the same sets.
type group struct {
	Title string `json:"title"`
	Used  bool   `json:"used"`
	// Endpoints are the first ones, and More is the number of others.
	Endpoints []shownEndpoint `json:"endpoints"`
	More      int             `json:"more,omitempty"`

	sets model.EndpointSets
}

// shownEndpoint is an endpoint in a picture.
type shownEndpoint struct {
	Target netip.AddrPort `json:"target"`
	Pod    string         `json:"pod,omitempty"`
	Node   string         `json:"node,omitempty"`
	Local  bool           `json:"local"`
	// Why says why it is used or not.
	Why string `json:"why,omitempty"`
}

const (
	maxPictures       = 100
	maxEndpointsShown = 200 // of a group
	maxAddressesShown = 6   // of a way
	maxNotes          = 50
	maxRulesBytes     = 256 << 10
)

// named returns the name of the service that the page shows under the given name: JSON has U+FFFD for each byte that is
// not UTF-8.
func (v *view) named(shown model.ServiceName) model.ServiceName {
	if !strings.ContainsRune(shown.String(), utf8.RuneError) || v.snapshot.Service(shown) != nil {
		return shown
	}
	for e := range v.snapshot.Services() {
		name := e.Service.Name
		if string([]rune(name.Namespace)) == shown.Namespace && string([]rune(name.Name)) == shown.Name {
			return name
		}
	}
	return shown
}

// service returns what is known about a service, except its rules, or nil if it is unknown.
func (v *view) service(name model.ServiceName) *serviceDetails {
	name = v.named(name)
	out := &serviceDetails{Revision: v.snapshot.Revision(), Name: name, Pictures: []picture{}}
	var explanation *localstate.Explanation
	if v.explainer != nil {
		explanation, _ = v.explainer.Explain(name)
	}
	entry := v.snapshot.Service(name)
	if entry == nil && explanation == nil {
		return nil
	}
	if explanation != nil {
		out.Notes = notesOf(explanation)
	}
	if entry == nil {
		return out
	}
	summary := v.summary(entry)
	out.Service, out.Summary = entry.Service, &summary
	explained := byPort(explanation)
	for _, port := range entry.Service.Ports {
		for _, f := range model.Families() {
			switch {
			case *port.Routes.At(f) == (model.Routes{}):
			case len(out.Pictures) == maxPictures:
				out.MorePictures++
			default:
				out.Pictures = append(out.Pictures, v.picture(entry, port, f, explained))
			}
		}
	}
	return out
}

// describe adds the backend's rules, if it has the service.
func (v *view) describe(ctx context.Context, out *serviceDetails) {
	d, ok := v.backend.(sink.Describer)
	if !ok || out.Service == nil {
		return
	}
	rules, err := d.DescribeService(ctx, out.Name)
	if err != nil {
		out.RulesError = shorten(err.Error())
	}
	if len(rules) > maxRulesBytes {
		rules = rules[:maxRulesBytes] + "\n... and more\n"
	}
	out.Rules = rules
}

func notesOf(e *localstate.Explanation) (notes []string) {
	if e.Skipped != "" {
		notes = append(notes, "skipped: "+e.Skipped)
	}
	if e.Held {
		notes = append(notes, "held: no slice has a usable endpoint, so the last ones stay")
	}
	for _, p := range e.UnmatchedPorts {
		notes = append(notes, "port "+p+" matches no port of the service")
	}
	for _, text := range e.Ignored {
		notes = append(notes, "ignored: "+text)
	}
	if more := len(notes) - maxNotes; more > 0 {
		notes = append(notes[:maxNotes], fmt.Sprintf("and %d more", more))
	}
	return notes
}

// portFamily names a port in one family.
type portFamily struct {
	port   model.PortName
	family string
}

// byPort returns the explanations of the ports by port and family. x may be nil.
func byPort(x *localstate.Explanation) map[portFamily]*localstate.PortExplanation {
	ports := map[portFamily]*localstate.PortExplanation{}
	for i := 0; x != nil && i < len(x.Ports); i++ {
		ports[portFamily{x.Ports[i].Port, x.Ports[i].Family}] = &x.Ports[i]
	}
	return ports
}

// picture draws one port in one family.
func (v *view) picture(e *sink.ServiceEntry, port model.ServicePort, f model.Family,
	explained map[portFamily]*localstate.PortExplanation) picture {
	p := picture{Port: e.Service.PortName(port), Family: f.String(), Ways: []way{}}
	why := map[netip.AddrPort]string{}
	var known []localstate.EndpointExplanation
	if x := explained[portFamily{p.Port, p.Family}]; x != nil {
		p.Topology, known = x.Topology, x.Endpoints
	}
	for i := range known {
		if known[i].Reason != localstate.ReasonDuplicate {
			why[known[i].Target] = known[i].Text
		}
	}

	routes := *port.Routes.At(f)
	groups := newGroups(routes.Sets())
	for _, ep := range e.PortEndpoints(port.Name, port.Protocol) {
		if ep.Family() != f {
			continue
		}
		groups.add(ep.Sets&routes.Sets(), endpointOf(ep, why[ep.Target]))
		delete(why, ep.Target)
	}
	for i := range known {
		// Endpoints that the backend did not receive, because no traffic goes there.
		if text, ok := why[known[i].Target]; ok && known[i].Sets == 0 {
			k := &known[i]
			groups.add(0, shownEndpoint{Target: k.Target, Node: k.Node, Pod: podName(k.TargetRef), Why: text,
				Local: v.snapshot.Node() != nil && k.Node != "" && k.Node == v.snapshot.Node().Name})
			delete(why, k.Target)
		}
	}
	p.Groups = slices.DeleteFunc(groups, func(g group) bool { return len(g.Endpoints) == 0 })
	p.addWays(e.Service, port, f, v.snapshot.Node())
	return p
}

func endpointOf(ep *model.Endpoint, why string) shownEndpoint {
	switch {
	case why != "":
	case ep.Draining():
		why = "serving while it terminates"
	case ep.Sets == 0:
		why = "not used on this node"
	case ep.Ready:
		why = "ready"
	}
	return shownEndpoint{Target: ep.Target, Pod: podName(ep.Details.Get().TargetRef), Node: ep.Node, Local: ep.Local,
		Why: why}
}

func podName(ref model.TargetRef) string {
	if ref.Kind != "Pod" {
		return ""
	}
	return ref.Namespace + "/" + ref.Name
}

// groups collects endpoints by their sets, in the order in which they are shown.
type groups []group

// newGroups returns the possible groups of a port whose routes use these sets.
func newGroups(used model.EndpointSets) groups {
	both, onlyCluster := "on this node: for all traffic", "for traffic that may leave this node"
	if used != model.ClusterSet|model.LocalSet {
		both, onlyCluster = "in use", "in use"
	}
	return groups{
		{Title: both, Used: true, sets: model.ClusterSet | model.LocalSet},
		{Title: "on this node: for traffic that must stay here", Used: true, sets: model.LocalSet},
		{Title: onlyCluster, Used: true, sets: model.ClusterSet},
		{Title: "not used"},
	}
}

func (g groups) add(sets model.EndpointSets, e shownEndpoint) {
	group := &g[slices.IndexFunc(g, func(group group) bool { return group.sets == sets })]
	if len(group.Endpoints) < maxEndpointsShown {
		group.Endpoints = append(group.Endpoints, e)
	} else {
		group.More++
	}
}

// addWays adds the kinds of traffic that reach the port.
func (p *picture) addWays(s *model.Service, port model.ServicePort, f model.Family, node *model.Node) {
	routes := *port.Routes.At(f)
	at := func(list []netip.Addr, number uint16) (texts []string) {
		for _, a := range list {
			if model.FamilyOf(a) == f && number != 0 {
				texts = append(texts, fmt.Sprintf("%v/%v", netip.AddrPortFrom(a, number), port.Protocol))
			}
		}
		return texts
	}
	if to := at(s.ClusterIPs, port.Port); len(to) > 0 && routes.ClusterIP.Endpoints != 0 {
		p.add("anyone", to, "cluster IP", routes.ClusterIP, "S28")
	}
	external := func(to []string, kind string, only []netip.Prefix) {
		if len(to) == 0 || routes.External.Endpoints == 0 {
			return
		}
		if len(only) > 0 {
			kind += fmt.Sprintf(", for %s only", count(len(only), "source range"))
		}
		if routes.ExternalFromPod == routes.External && routes.ExternalFromNode == routes.External {
			p.add("anyone", to, kind, routes.External, "S27")
			return
		}
		p.add("outside", to, kind, routes.External, "S27")
		p.add("pods of this node", to, kind, routes.ExternalFromPod, "S27")
		p.add("this node", to, kind, routes.ExternalFromNode, "S27")
	}
	vips, ranges := at(s.LoadBalancerIPs, port.Port), s.SourceRanges(f)
	var to []string
	var kinds []string
	also := func(kind string, list []string) {
		if len(list) > 0 {
			to, kinds = append(to, list...), append(kinds, kind)
		}
	}
	if len(ranges) > 0 { // which restrict VIPs, and nothing else (S26)
		external(vips, "load-balancer VIP", ranges)
	} else {
		also("load-balancer VIP", vips)
	}
	also("external IP", at(s.ExternalIPs, port.Port))
	if node != nil {
		also("node port", at(node.IPs, port.NodePort))
	}
	external(to, strings.Join(kinds, ", "), nil)
}

func (p *picture) add(from string, to []string, kind string, r model.Route, rule string) {
	w := way{From: from, To: to, Kind: kind, Rule: rule, Groups: []int{}, Policy: "any endpoint"}
	if r.Endpoints == model.LocalSet {
		w.Policy = "endpoints on this node only"
	}
	switch r.Masquerade {
	case model.MasqueradeAlways:
		w.Source = "source masqueraded"
	case model.MasqueradeUnlessLocalPod:
		w.Source = "masqueraded unless local pod"
	default:
		w.Source = "source address kept"
	}
	if w.MoreTo = max(len(to)-maxAddressesShown, 0); w.MoreTo > 0 {
		w.To = slices.Clip(to[:maxAddressesShown])
	}
	for i := range p.Groups {
		if p.Groups[i].sets.Has(r.Endpoints) {
			w.Groups = append(w.Groups, i)
		}
	}
	if len(w.Groups) == 0 {
		w.Empty = verb(r.Empty)
	}
	p.Ways = append(p.Ways, w)
}
