package differential

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"
)

// maxTries bounds how often shrink tries something.
const maxTries = 5000

// shrink reduces a failing script while it still fails.
func shrink(sc script, fails func(script) bool) script {
	s := &shrinker{sc: sc, fails: fails, left: maxTries}
	for s.again = true; s.again && s.left > 0; {
		s.again = false
		s.waves()
		s.events()
		s.setup()
		s.objects()
	}
	return s.sc
}

type shrinker struct {
	sc    script
	fails func(script) bool
	left  int
	again bool // something was smaller
}

// try accepts a smaller script if it fails, too.
func (s *shrinker) try(smaller script) bool {
	if s.left == 0 {
		return false
	}
	s.left--
	if !s.fails(smaller) {
		return false
	}
	s.sc, s.again = smaller, true
	return true
}

// waves drops waves, the last ones first, and joins waves where possible.
func (s *shrinker) waves() {
	for i := len(s.sc.waves) - 1; i >= 0; i-- {
		s.try(script{s.sc.setup, dropAt(s.sc.waves, i)})
	}
	for i := len(s.sc.waves) - 2; i >= 0; i-- {
		joined := dropAt(s.sc.waves, i+1)
		joined[i] = slices.Concat(s.sc.waves[i], s.sc.waves[i+1])
		s.try(script{s.sc.setup, joined})
	}
}

// events drops events: all of an object, or one by one.
func (s *shrinker) events() {
	for _, k := range s.sc.keys() {
		s.try(s.sc.edit(func(e event) (event, bool) { return e, keyOf(e.object) != k }))
	}
	for w := range s.sc.waves {
		for i := len(s.sc.waves[w]) - 1; i >= 0; i-- {
			waves := slices.Clone(s.sc.waves)
			waves[w] = dropAt(waves[w], i)
			s.try(script{s.sc.setup, waves})
		}
	}
}

func (s *shrinker) setup() {
	for _, change := range []func(*setup){
		func(s *setup) { s.Families = nil },
		func(s *setup) { s.Detector = detectNothing },
		func(s *setup) { s.MasqueradeAll = false },
		func(s *setup) { s.Unfiltered = false },
		func(s *setup) { s.Malformed = false },
	} {
		setup := s.sc.setup
		if change(&setup); setup.text() != s.sc.setup.text() {
			s.try(script{setup, s.sc.waves})
		}
	}
}

// objects removes parts of objects: from all versions of an object or, if that is not possible, from one.
func (s *shrinker) objects() {
	for _, k := range s.sc.keys() {
		for _, change := range simplifications(k) {
			if s.tryChange(change, func(event) bool { return true }, k) {
				continue
			}
			for _, w := range s.sc.waves {
				for _, e := range w {
					s.tryChange(change, func(o event) bool { return o.object == e.object }, k)
				}
			}
		}
	}
}

// tryChange tries a change to some events of an object, unless it changes nothing.
func (s *shrinker) tryChange(change func(object), of func(event) bool, k key) bool {
	changed := false
	smaller := s.sc.edit(func(e event) (event, bool) {
		if keyOf(e.object) != k || e.deleted || !of(e) {
			return e, true
		}
		o := e.object.DeepCopyObject().(object)
		change(o)
		if string(writeObject(o, true)) == string(writeObject(e.object, true)) {
			return e, true
		}
		changed = true
		return event{object: o}, true
	})
	return changed && s.try(smaller)
}

// edit returns a script with other events, or without some.
func (sc script) edit(f func(event) (event, bool)) script {
	edited := script{setup: sc.setup}
	for _, w := range sc.waves {
		var next wave
		for _, e := range w {
			if e, keep := f(e); keep {
				next = append(next, e)
			}
		}
		edited.waves = append(edited.waves, next)
	}
	return edited
}

// simplifications each remove something from an object of a kind.
func simplifications(k key) []func(object) {
	list := []func(object){
		func(o object) { o.SetAnnotations(nil) },
		func(o object) { o.SetUID("") },
	}
	switch k.kind {
	case "Service":
		list = append(list, simplerService()...)
	case "EndpointSlice":
		list = append(list, simplerSlice()...)
	default:
		list = append(list, simplerNode()...)
	}
	return list
}

// canonical rewrites addresses in their canonical form.
func canonical(ips ...*string) {
	for _, text := range ips {
		if ip := netutils.ParseIPSloppy(*text); ip != nil {
			*text = ip.String()
		}
	}
}

// most is how many entries of a list shrink tries to drop.
const most = 6

func simplerService() []func(object) {
	var list []func(object)
	add := func(change func(*corev1.Service)) {
		list = append(list, func(o object) { change(o.(*corev1.Service)) })
	}
	add(func(s *corev1.Service) { s.Labels = nil })
	add(func(s *corev1.Service) {
		canonical(&s.Spec.ClusterIP)
		for i := range s.Spec.ClusterIPs {
			canonical(&s.Spec.ClusterIPs[i])
		}
	})
	add(func(s *corev1.Service) {
		for i := range s.Spec.ExternalIPs {
			canonical(&s.Spec.ExternalIPs[i])
		}
		for i := range s.Status.LoadBalancer.Ingress {
			canonical(&s.Status.LoadBalancer.Ingress[i].IP)
		}
	})
	add(func(s *corev1.Service) { s.Spec.ExternalIPs = nil })
	add(func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil })
	add(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = nil })
	add(func(s *corev1.Service) {
		s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	})
	add(func(s *corev1.Service) { s.Spec.TrafficDistribution, s.Spec.PublishNotReadyAddresses = nil, false })
	add(func(s *corev1.Service) {
		if s.Spec.Type != corev1.ServiceTypeExternalName {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeClusterIP, "", 0
			s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges, s.Status.LoadBalancer.Ingress = nil, nil, nil
			s.Spec.AllocateLoadBalancerNodePorts = nil
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].NodePort = 0
			}
		}
	})
	add(func(s *corev1.Service) {
		if s.Spec.ExternalTrafficPolicy != "" {
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
		}
	})
	add(func(s *corev1.Service) {
		cluster := corev1.ServiceInternalTrafficPolicyCluster
		s.Spec.InternalTrafficPolicy = &cluster
	})
	add(func(s *corev1.Service) {
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			no := false
			s.Spec.AllocateLoadBalancerNodePorts = &no
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].NodePort = 0
			}
		}
	})
	for keep := range 2 { // of a dual-stack service one family
		add(func(s *corev1.Service) {
			if len(s.Spec.ClusterIPs) == 2 {
				s.Spec.ClusterIPs, s.Spec.ClusterIP = s.Spec.ClusterIPs[keep:keep+1], s.Spec.ClusterIPs[keep]
				s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
				complete(s)
			}
		})
	}
	add(func(s *corev1.Service) {
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
		complete(s)
	})
	for i := range most {
		add(func(s *corev1.Service) {
			if len(s.Spec.Ports) > i {
				s.Spec.Ports = dropAt(s.Spec.Ports, i)
			}
		})
		add(func(s *corev1.Service) {
			if len(s.Spec.ExternalIPs) > i {
				s.Spec.ExternalIPs = dropAt(s.Spec.ExternalIPs, i)
			}
		})
		add(func(s *corev1.Service) {
			if in := s.Status.LoadBalancer.Ingress; len(in) > i {
				s.Status.LoadBalancer.Ingress = dropAt(in, i)
			}
		})
		add(func(s *corev1.Service) {
			if len(s.Spec.LoadBalancerSourceRanges) > i {
				s.Spec.LoadBalancerSourceRanges = dropAt(s.Spec.LoadBalancerSourceRanges, i)
			}
		})
		add(func(s *corev1.Service) {
			if len(s.Spec.Ports) > i {
				p := &s.Spec.Ports[i]
				p.Protocol, p.TargetPort.Type, p.TargetPort.IntVal = corev1.ProtocolTCP, 0, p.Port
			}
		})
	}
	return list
}

func simplerSlice() []func(object) {
	var list []func(object)
	add := func(change func(*discoveryv1.EndpointSlice)) {
		list = append(list, func(o object) { change(o.(*discoveryv1.EndpointSlice)) })
	}
	for i := range most {
		add(func(s *discoveryv1.EndpointSlice) {
			if len(s.Endpoints) > i {
				s.Endpoints = dropAt(s.Endpoints, i)
			}
		})
		add(func(s *discoveryv1.EndpointSlice) {
			if len(s.Ports) > i {
				s.Ports = dropAt(s.Ports, i)
			}
		})
		add(func(s *discoveryv1.EndpointSlice) {
			if len(s.Ports) > i {
				tcp := corev1.ProtocolTCP
				s.Ports[i].Protocol = &tcp
			}
		})
		for _, change := range []func(*discoveryv1.Endpoint){
			func(e *discoveryv1.Endpoint) { e.Conditions = discoveryv1.EndpointConditions{} },
			func(e *discoveryv1.Endpoint) { e.Conditions.Ready = nil },
			func(e *discoveryv1.Endpoint) { e.Conditions.Serving = nil },
			func(e *discoveryv1.Endpoint) { e.Conditions.Terminating = nil },
			func(e *discoveryv1.Endpoint) { e.Hints = nil },
			func(e *discoveryv1.Endpoint) {
				if e.Hints != nil {
					e.Hints.ForNodes = nil
				}
			},
			func(e *discoveryv1.Endpoint) {
				if e.Hints != nil {
					e.Hints.ForZones = nil
				}
			},
			func(e *discoveryv1.Endpoint) { e.NodeName = nil },
			func(e *discoveryv1.Endpoint) { e.Zone = nil },
			func(e *discoveryv1.Endpoint) { e.Addresses = e.Addresses[:min(1, len(e.Addresses))] },
			func(e *discoveryv1.Endpoint) {
				if len(e.Addresses) > 0 {
					canonical(&e.Addresses[0])
				}
			},
		} {
			add(func(s *discoveryv1.EndpointSlice) {
				if len(s.Endpoints) > i {
					change(&s.Endpoints[i])
				}
			})
		}
	}
	return list
}

func simplerNode() []func(object) {
	var list []func(object)
	for _, change := range []func(*corev1.Node){
		func(n *corev1.Node) { n.Labels = nil },
		func(n *corev1.Node) { n.Status.Addresses = nil },
		func(n *corev1.Node) { n.Spec.PodCIDRs, n.Spec.PodCIDR = nil, "" },
		func(n *corev1.Node) { n.Spec.Taints = nil },
		func(n *corev1.Node) { n.DeletionTimestamp = nil },
	} {
		list = append(list, func(o object) { change(o.(*corev1.Node)) })
	}
	for i := range most {
		list = append(list, func(o object) {
			if n := o.(*corev1.Node); len(n.Status.Addresses) > i {
				n.Status.Addresses = dropAt(n.Status.Addresses, i)
			}
		})
	}
	return list
}
