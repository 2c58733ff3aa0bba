package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// ovn simulates the database, and the switches and routers that implement it: a node has its own load balancers of a
// service if there are any, otherwise those of its group.
type ovn struct {
	t        *testing.T
	has      map[string]map[model.ServiceName]*balancers
	members  map[string]member
	eachTime func() // is called after each write
}

func newOVN(t *testing.T) *ovn {
	return &ovn{t: t, has: map[string]map[model.ServiceName]*balancers{}, members: map[string]member{}}
}

func (o *ovn) write(where string, service model.ServiceName, b *balancers) {
	if o.has[where] == nil {
		o.has[where] = map[model.ServiceName]*balancers{}
	}
	if o.has[where][service] = b; b == nil {
		delete(o.has[where], service)
	} else {
		for _, row := range b.rows {
			if err := checkRow(row); err != nil {
				o.t.Errorf("%s: %v: OVN refuses %+v: %v", where, service, row, err)
			}
		}
	}
	if len(o.has[where]) == 0 {
		delete(o.has, where)
	}
	o.eachTime()
}

func (o *ovn) join(node, group string, variables map[string]string) {
	if o.members[node] = (member{group, variables}); group == "" {
		delete(o.members, node)
	}
	o.eachTime()
}

// checkRow says what OVN, or OVN-Kubernetes, does not accept in a row.
func checkRow(row loadBalancer) error {
	if row.template != "" && row.template != "ipv4" && row.template != "ipv6" {
		return errors.New("address-family is ipv4 or ipv6")
	}
	if row.template != "" && row.affinity > 0 {
		return errors.New("a template has no affinity")
	}
	for _, r := range row.rules {
		family := row.template
		if name, isTemplate := strings.CutPrefix(r.vip, "^"); isTemplate != (row.template != "") {
			return errors.New("only a template has variables, and nothing else")
		} else if isTemplate && !regexp.MustCompile(`^\w+:\d+$`).MatchString(name) {
			return fmt.Errorf("%q is no variable with a port", r.vip)
		}
		if family == "" {
			vip, err := netip.ParseAddrPort(r.vip)
			if err != nil {
				return err
			}
			family = familyText(vip.Addr())
		}
		for _, b := range r.backends {
			if familyText(b.target.Addr()) != family {
				return fmt.Errorf("%v is not of family %s", b.target, family)
			}
		}
	}
	return nil
}

func familyText(ip netip.Addr) string { return strings.ToLower(model.FamilyOf(ip).String()) }

// of returns the load balancers of a node, by service.
func (o *ovn) of(node string) map[model.ServiceName]*balancers {
	all := maps.Clone(o.has[o.members[node].group])
	if all == nil {
		all = map[model.ServiceName]*balancers{}
	}
	maps.Copy(all, o.has[node])
	return all
}

// outcome is what happens to a connection.
type outcome struct {
	verdict  oracle.Verdict
	backends []netip.AddrPort
	affinity string
	snat     bool // on a router
}

// connect opens a connection on a node's switch or router.
func (o *ovn) connect(node string, at place, to netip.AddrPort, protocol model.Protocol) outcome {
	for _, b := range o.of(node) {
		for _, row := range b.rows {
			if row.protocol != protocol || row.at != at && row.at != everywhere {
				continue
			}
			for _, r := range row.rules {
				if vip, applies := o.expand(node, row, r.vip); !applies || vip != to {
					continue
				}
				out := outcome{verdict: oracle.Deliver, affinity: row.affinity.String(), snat: at == routers && !row.skipSNAT}
				for _, backend := range r.backends {
					out.backends = append(out.backends, backend.target)
				}
				slices.SortFunc(out.backends, model.CompareTargets)
				switch {
				case len(out.backends) > 0:
				case row.reject:
					return outcome{verdict: oracle.Reject}
				default:
					return outcome{verdict: oracle.Drop}
				}
				return out
			}
		}
	}
	return outcome{verdict: oracle.NotOurs}
}

// expand replaces the variable of a template; if this node does not set it, the rule does not apply here.
func (o *ovn) expand(node string, row loadBalancer, vip string) (expanded netip.AddrPort, applies bool) {
	if row.template == "" {
		return netip.MustParseAddrPort(vip), true
	}
	name, port, _ := strings.Cut(strings.TrimPrefix(vip, "^"), ":")
	value, isSet := o.members[node].vars[name]
	if !isSet {
		return expanded, false
	}
	ip, err := netip.ParseAddr(value)
	number, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil || familyText(ip) != row.template {
		o.t.Errorf("%s: %s is %q in a row of %s", node, name, value, row.template)
		return expanded, false
	}
	return netip.AddrPortFrom(ip, uint16(number)), true
}

// expected returns the outcome of the same connection according to the node's own state.
func expected(o *oracle.Oracle, at place, to netip.AddrPort, protocol model.Protocol) (outcome, error) {
	flow := oracle.Flow{From: oracle.External, Source: netip.MustParseAddr("192.0.2.99"), Destination: to,
		Protocol: protocol}
	if to.Addr().Is6() {
		flow.Source = netip.MustParseAddr("2001:db8:f::99")
	}
	if at == switches {
		flow.From, flow.Source = oracle.LocalPod, netip.MustParseAddr("10.244.9.9")
		if to.Addr().Is6() {
			flow.Source = netip.MustParseAddr("fd01:9::9")
		}
	}
	says, err := o.Expect(flow)
	out := outcome{verdict: says.Verdict}
	if says.Verdict != oracle.Deliver {
		return out, err
	}
	out.affinity = says.AffinityTimeout.String()
	for _, e := range says.Endpoints {
		out.backends = append(out.backends, e.Endpoint)
		out.snat = out.snat || at == routers && e.SourceNAT
	}
	return out, err
}
