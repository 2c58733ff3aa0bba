// Package backend has the backend that the suite tests, as the packages below conformance know it. Its types have the
// fields of conformance.Factory, conformance.Env and conformance.Feature, where they are documented.
package backend

import (
	"context"
	"net/netip"
	"os"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Factory starts a backend, and controls it in ways for which a sink has no method.
type Factory struct {
	New           func(ctx context.Context, env Env) (sink.Sink, error)
	Cleanup       func(ctx context.Context, env Env) error
	Stop          func(ctx context.Context, env Env) error
	Dump          func(ctx context.Context, env Env) (string, error)
	Break         func(ctx context.Context, env Env) error
	RepairsItself bool
	Fail          func(ctx context.Context, env Env) (repair func() error, err error)
	Lacks         []Feature
	Waives        []string
}

// Env is the node that a backend serves. conformance.Env is converted to it, so both have the same fields.
type Env struct {
	ID                                string
	NetNS                             *os.File
	Families                          []model.Family
	NodeIPs, HostAddresses            []netip.Addr
	OtherNodeIPs                      []netip.Addr
	NodePorts                         nodeaddr.Choice
	NodePortAddresses                 []netip.Addr
	LocalhostNodePorts, LoopbackProxy bool
}

// Feature is something that a backend may lack.
type Feature string

// The features. Each is named as its constant.
const (
	IPv4               Feature = "IPv4"
	IPv6               Feature = "IPv6"
	SCTP               Feature = "SCTP"
	SessionAffinity    Feature = "SessionAffinity"
	SourceRanges       Feature = "SourceRanges"
	ExternalIPs        Feature = "ExternalIPs"
	NodePortAddresses  Feature = "NodePortAddresses"
	LoopbackNodePorts  Feature = "LoopbackNodePorts"
	Refusal            Feature = "Refusal"
	SourcePreservation Feature = "SourcePreservation"
	UnusedAddresses    Feature = "UnusedAddresses"
	StaleFlows         Feature = "StaleFlows"
	Routes             Feature = "Routes"
)

// Features returns all features.
func Features() []Feature {
	return []Feature{IPv4, IPv6, SCTP, SessionAffinity, SourceRanges, ExternalIPs, NodePortAddresses, LoopbackNodePorts,
		Refusal, SourcePreservation, UnusedAddresses, StaleFlows, Routes}
}

// LacksFeature reports whether the backend lacks a feature.
func (f Factory) LacksFeature(feature Feature) bool { return slices.Contains(f.Lacks, feature) }

// WaivesCase reports whether the backend waives a case.
func (f Factory) WaivesCase(name string) bool { return slices.Contains(f.Waives, name) }

// Families returns the families that the backend serves.
func (f Factory) Families() []model.Family {
	var families []model.Family
	if !f.LacksFeature(IPv4) {
		families = append(families, model.IPv4)
	}
	if !f.LacksFeature(IPv6) {
		families = append(families, model.IPv6)
	}
	return families
}

// Names of cases that a backend may waive. Random states and the check of each flow take these waivers into account.
const (
	SharedAffinityCase = "a client stays with its endpoint, at all addresses of the port"
	ExternalPortsCase  = "other ports of external addresses are left alone"
	BridgeCase         = "local pods are known by the bridge that they are behind"
	InterfaceCase      = "local pods are known by the names of their interfaces"
)
