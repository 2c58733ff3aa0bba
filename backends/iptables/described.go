package iptables

import (
	"cmp"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// described is a service as it was last described, with its endpoints.
type described struct {
	service   *model.Service
	endpoints []*model.Endpoint // sorted as compareEndpoints says
}

// compareEndpoints orders endpoints of one service as their keys are ordered.
func compareEndpoints(a, b *model.Endpoint) int {
	return cmp.Or(cmp.Compare(a.Port.Port, b.Port.Port), cmp.Compare(a.Port.Protocol, b.Port.Protocol),
		model.CompareTargets(a.Target, b.Target))
}

func (d *described) isEmpty() bool { return d.service == nil && len(d.endpoints) == 0 }

// setEndpoint tells whether that makes a difference.
func (d *described) setEndpoint(ep *model.Endpoint) bool {
	i, found := slices.BinarySearchFunc(d.endpoints, ep, compareEndpoints)
	switch {
	case !found:
		d.endpoints = slices.Insert(d.endpoints, i, ep)
	case d.endpoints[i].Equal(ep):
		return false
	default:
		d.endpoints[i] = ep
	}
	return true
}

// deleteEndpoint tells whether that makes a difference.
func (d *described) deleteEndpoint(key model.EndpointKey) bool {
	i, found := slices.BinarySearchFunc(d.endpoints, &model.Endpoint{Port: key.Port, Target: key.Target}, compareEndpoints)
	if found {
		d.endpoints = slices.Delete(d.endpoints, i, i+1)
	}
	return found
}
