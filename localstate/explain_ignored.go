package localstate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// ignoredSlice is the record of a slice that is not used, for explanations only.
type ignoredSlice struct {
	name, service string // service is "" if the slice names none
	endpoints     int
	reason        string
}

// ignoredSlices are the ignored slices of one namespace, by name.
type ignoredSlices map[string]ignoredSlice

// noteIgnored records why a slice is ignored; "" means that it is not. A State for a class explains nothing.
func (s *State) noteIgnored(obj *discoveryv1.EndpointSlice, reason string) {
	of := s.ignored[obj.Namespace]
	if reason == "" {
		if delete(of, obj.Name); of != nil && len(of) == 0 {
			delete(s.ignored, obj.Namespace)
		}
		return
	}
	if s.ignored == nil || obj.Name == "" {
		return
	}
	if of == nil {
		of = ignoredSlices{}
		s.ignored[obj.Namespace] = of
	}
	of[obj.Name] = ignoredSlice{obj.Name, obj.Labels[discoveryv1.LabelServiceName], len(obj.Endpoints), reason}
}

// whyIgnored returns why a slice is ignored, or "" if it is not. Ignored are slices of headless services (S1), slices
// without a service or a name, and those of a family that is not served (S13).
func (s *State) whyIgnored(obj *discoveryv1.EndpointSlice) string {
	_, headless := obj.Labels[corev1.IsHeadlessService]
	switch {
	case obj.Name == "":
		return "no name"
	case obj.Labels[discoveryv1.LabelServiceName] == "":
		return "no label " + discoveryv1.LabelServiceName
	case headless && !s.opts.HeadlessServices:
		return "the label " + corev1.IsHeadlessService
	case obj.AddressType == discoveryv1.AddressTypeFQDN:
		return "address type FQDN"
	case !slices.ContainsFunc(s.families, func(f model.Family) bool { return f.String() == string(obj.AddressType) }):
		return fmt.Sprintf("address type %s, which this proxy does not serve", obj.AddressType)
	}
	return ""
}

// ignoredOf returns the ignored slices of a service. A slice without the label belongs to a service if its name is the
// service's name, alone or followed by "-" and more.
func (s *State) ignoredOf(name model.ServiceName) (list []ignoredSlice) {
	for _, x := range s.ignored[name.Namespace] {
		rest, ok := strings.CutPrefix(x.name, name.Name)
		if x.service == name.Name || x.service == "" && ok && (rest == "" || rest[0] == '-') {
			list = append(list, x)
		}
	}
	return list
}

// ignoredParts describes what is ignored in the slices of a service: whole slices, including those in ignored, and
// parts of others.
func (svc *service) ignoredParts(ignored []ignoredSlice) (texts []string) {
	for _, slice := range svc.slices {
		x := ignoredSlice{slice.name, svc.name.Name, slice.len(), ""}
		switch {
		case !svc.intake.families.Has(slice.family):
			x.reason = fmt.Sprintf("address type %v, which the service does not have", slice.family)
		case len(slice.ports) == 0:
			x.reason = "no port with a name and a number"
		default:
			continue
		}
		ignored = append(ignored, x)
	}
	slices.SortFunc(ignored, func(a, b ignoredSlice) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.name, b.name))
	})
	for len(ignored) > 0 {
		reason, n, endpoints := ignored[0].reason, 0, 0
		var names []string
		for ; n < len(ignored) && ignored[n].reason == reason; n++ {
			endpoints += ignored[n].endpoints
			names = append(names, ignored[n].name)
		}
		texts = append(texts, fmt.Sprintf("%s in %s: %s", plural(endpoints, "endpoint", "endpoints"), slicesNamed(names),
			reason))
		ignored = ignored[n:]
	}
	for _, slice := range svc.slices {
		if n := int(slice.skipped.ports); n > 0 && len(slice.ports) > 0 {
			texts = append(texts, fmt.Sprintf("%s in slice %s: no name and number, or not a valid one",
				plural(n, "port", "ports"), slice.name))
		}
		if n := int(slice.skipped.endpoints); n > 0 {
			texts = append(texts, fmt.Sprintf("%s in slice %s: no address", plural(n, "endpoint", "endpoints"), slice.name))
		}
		addresses, first := 0, ""
		for i := range slice.len() {
			if flags := slice.flags(i); !flags.has(flagFurther) && !flags.has(flagInvalid) {
				continue
			}
			p := slice.places[i].Value()
			addresses += p.further
			first = cmp.Or(first, p.unused)
		}
		if addresses > 0 {
			texts = append(texts, fmt.Sprintf("%s in slice %s (%s ...): only the first address of an endpoint counts",
				plural(addresses, "address", "addresses"), slice.name, first))
		}
	}
	return texts
}

// invalidAddresses describes the addresses in the slices of a service that do not parse, or are not of the slice's
// family.
func (svc *service) invalidAddresses() (texts []string) {
	for _, slice := range svc.slices {
		n, first := 0, ""
		for i := range slice.len() {
			if slice.flags(i).has(flagInvalid) {
				n++
				first = cmp.Or(first, slice.places[i].Value().invalid)
			}
		}
		if n > 0 {
			texts = append(texts, fmt.Sprintf("%s in slice %s (%q%s): not an %v address", plural(n, "address", "addresses"),
				slice.name, first, more(n), slice.family))
		}
	}
	return texts
}

// more returns "" after the only one, and " ..." after the first of several.
func more(n int) string {
	if n == 1 {
		return ""
	}
	return " ..."
}

// slicesNamed returns a text that names a few of the slices.
func slicesNamed(names []string) string {
	n := len(names)
	if n == 1 {
		return "slice " + names[0]
	}
	if n > 3 {
		names = append(names[:3], "...")
	}
	return fmt.Sprintf("%d slices (%s)", n, strings.Join(names, ", "))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
