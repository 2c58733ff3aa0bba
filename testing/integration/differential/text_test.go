package differential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	discoveryv1defaults "k8s.io/kubernetes/pkg/apis/discovery/v1"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The text form of a script is YAML: its objects as documents, with "# delete" before a deleted one, "# sync" at the
// end of a wave, and "# setup" with the setup. Defaults of the API server are left out, unless the object is malformed.
const (
	markSetup  = "# setup "
	markSync   = "# sync"
	markDelete = "# delete"
)

// String writes a script in the form that parseScript reads.
func (sc script) String() string {
	var b strings.Builder
	asJSON, err := json.Marshal(sc.setup)
	if err != nil {
		return err.Error()
	}
	fmt.Fprintf(&b, "%s%s\n", markSetup, asJSON)
	for _, w := range sc.waves {
		for _, e := range w {
			b.WriteString("---\n")
			if e.deleted {
				b.WriteString(markDelete + "\n")
				b.Write(writeName(e.object))
				continue
			}
			b.Write(writeObject(e.object, sc.setup.Malformed))
		}
		b.WriteString(markSync + "\n")
	}
	return b.String()
}

// writeName writes a deleted object, of which only the name matters.
func writeName(o object) []byte {
	version, kind := kindOf(o).ToAPIVersionAndKind()
	return fmt.Appendf(nil, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n  namespace: %q\n", version, kind,
		o.GetName(), o.GetNamespace())
}

// writeObject writes an object whole, or without what complete fills in.
func writeObject(o object, whole bool) []byte {
	o = o.DeepCopyObject().(object)
	o.GetObjectKind().SetGroupVersionKind(kindOf(o))
	svc, isService := o.(*corev1.Service)
	noFamilies := isService && len(svc.Spec.ClusterIPs) > 0 && len(svc.Spec.IPFamilies) == 0
	if noFamilies {
		svc.Spec.IPFamilies = []corev1.IPFamily{} // complete would fill in some
	}
	if !whole {
		strip(o)
	}
	asJSON, err := json.Marshal(o)
	if err != nil {
		return []byte(err.Error())
	}
	var fields map[string]any
	if err := json.Unmarshal(asJSON, &fields); err != nil {
		return []byte(err.Error())
	}
	if dropEmpty(fields); noFamilies {
		fields["spec"].(map[string]any)["ipFamilies"] = []string{}
	}
	var text []byte
	for _, name := range []string{"apiVersion", "kind", "metadata", ""} { // in canonical form
		part := fields
		if name != "" {
			part = map[string]any{name: fields[name]}
			delete(fields, name)
		}
		asYAML, err := yaml.Marshal(part)
		if err != nil {
			return []byte(err.Error())
		}
		if len(part) > 0 {
			text = append(text, asYAML...)
		}
	}
	return text
}

// dropEmpty leaves out empty objects, such as the status of a service without a load balancer, and a target port that
// is not set.
func dropEmpty(fields map[string]any) {
	for name, v := range fields {
		switch v := v.(type) {
		case nil:
			delete(fields, name)
		case map[string]any:
			if dropEmpty(v); len(v) == 0 {
				delete(fields, name)
			}
		case []any:
			for _, entry := range v {
				if entry, ok := entry.(map[string]any); ok {
					dropEmpty(entry)
				}
			}
		}
	}
	if fields["targetPort"] == 0.0 {
		delete(fields, "targetPort")
	}
	delete(fields, "daemonEndpoints")
	delete(fields, "nodeInfo")
}

// strip removes from an object what complete would fill in.
func strip(o object) {
	whole := o.DeepCopyObject().(object)
	complete(whole)
	try := func(change func(object)) {
		filled := o.DeepCopyObject().(object)
		change(filled)
		if complete(filled); reflect.DeepEqual(filled, whole) {
			change(o)
		}
	}
	switch o := o.(type) {
	case *corev1.Service:
		for _, change := range []func(*corev1.ServiceSpec){
			func(s *corev1.ServiceSpec) { s.SessionAffinity = "" },
			func(s *corev1.ServiceSpec) { s.Type = "" },
			func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = "" },
			func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = nil },
			func(s *corev1.ServiceSpec) { s.AllocateLoadBalancerNodePorts = nil },
			func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = nil },
			func(s *corev1.ServiceSpec) { s.IPFamilies = nil },
			func(s *corev1.ServiceSpec) { s.ClusterIP = "" },
		} {
			try(func(o object) { change(&o.(*corev1.Service).Spec) })
		}
		for i := range o.Spec.Ports {
			try(func(o object) { o.(*corev1.Service).Spec.Ports[i].TargetPort.IntVal = 0 })
			try(func(o object) { o.(*corev1.Service).Spec.Ports[i].Protocol = "" })
		}
	case *discoveryv1.EndpointSlice:
		for i := range o.Ports {
			try(func(o object) { o.(*discoveryv1.EndpointSlice).Ports[i].Name = nil })
			try(func(o object) { o.(*discoveryv1.EndpointSlice).Ports[i].Protocol = nil })
		}
	}
}

// complete fills in what the API server would: its defaults, and what follows from a service's cluster IPs.
func complete(o object) {
	switch o := o.(type) {
	case *corev1.Service:
		corev1defaults.SetObjectDefaults_Service(o)
		spec := &o.Spec
		if len(spec.ClusterIPs) == 0 {
			return
		}
		if spec.ClusterIP == "" {
			spec.ClusterIP = spec.ClusterIPs[0]
		}
		switch {
		case spec.IPFamilies == nil && spec.ClusterIP != corev1.ClusterIPNone:
			for _, ip := range spec.ClusterIPs {
				spec.IPFamilies = append(spec.IPFamilies, familyOfText(ip))
			}
		case len(spec.IPFamilies) == 0: // it is to have none, as old objects
			spec.IPFamilies = nil
		}
		if spec.IPFamilyPolicy == nil {
			spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
			if len(spec.ClusterIPs) > 1 {
				spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
			}
		}
	case *discoveryv1.EndpointSlice:
		discoveryv1defaults.SetObjectDefaults_EndpointSlice(o)
	}
}

func familyOfText(ip string) corev1.IPFamily {
	if netutils.IsIPv6String(ip) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// parseScript reads the text form.
func parseScript(text string) (script, error) {
	var sc script
	var w wave
	var document bytes.Buffer
	deleted := false
	flush := func() error {
		objects, err := fakemodel.ParseYAML(document.Bytes())
		if err != nil {
			return fmt.Errorf("wave %d: %w", len(sc.waves)+1, err)
		}
		for _, o := range objects {
			o := o.(object)
			if svc, ok := o.(*corev1.Service); sc.setup.Malformed && ok && len(svc.Spec.IPFamilies) == 0 {
				svc.Spec.IPFamilies = nil
			}
			if !sc.setup.Malformed && !deleted {
				complete(o)
			}
			w = append(w, event{o, deleted})
		}
		document.Reset()
		deleted = false
		return nil
	}
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		setup, isSetup := strings.CutPrefix(trimmed, markSetup)
		switch {
		case isSetup:
			if err := json.Unmarshal([]byte(setup), &sc.setup); err != nil {
				return sc, fmt.Errorf("setup: %w", err)
			}
		case trimmed == markDelete:
			deleted = true
		case trimmed == "---":
			if err := flush(); err != nil {
				return sc, err
			}
		case trimmed == markSync:
			if err := flush(); err != nil {
				return sc, err
			}
			sc.waves, w = append(sc.waves, w), nil
		default:
			document.WriteString(line)
		}
	}
	if err := flush(); err != nil {
		return sc, err
	}
	if len(w) > 0 {
		sc.waves = append(sc.waves, w)
	}
	return sc, nil
}
