package dataplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/Microsoft/hnslib/hcn"
	"golang.org/x/sys/windows"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// HNS is the service of this machine. Its calls cannot be interrupted: an ended context only prevents
// further calls.
type HNS struct{}

var _ Interface = HNS{}

// NewHNS returns the HNS of this machine.
func NewHNS() (Interface, error) { return HNS{}, nil }

// classify wraps an error of HNS in the matching error of this package. Its text keeps that of HNS.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case hcn.CheckErrorWithCode(err, hcn.ErrorCode(windows.RPC_S_UNKNOWN_IF)), // 0x6b5: its interface is not there yet
		hcn.CheckErrorWithCode(err, hcn.ErrorCode(windows.RPC_S_SERVER_UNAVAILABLE)): // 0x6ba: nor is its process
		return errors.Join(ErrNotRunning, err)
	case hcn.CheckErrorWithCode(err, hcn.ErrorCode(windows.HCN_E_NETWORK_NOT_FOUND)):
		return errors.Join(ErrNetworkNotFound, ErrNotFound, err)
	case hcn.IsNotFoundError(err), hcn.IsElementNotFoundError(err),
		hcn.CheckErrorWithCode(err, hcn.ErrorCode(windows.HCN_E_ENDPOINT_NOT_FOUND)):
		return errors.Join(ErrNotFound, err)
	case hcn.IsPortAlreadyExistsError(err),
		hcn.CheckErrorWithCode(err, hcn.ErrorCode(windows.ERROR_ALREADY_EXISTS)): // after a restart of HNS
		return errors.Join(ErrAlreadyExists, err)
	case hcn.CheckErrorWithCode(err, hcn.ErrorCode(windows.HCN_E_INVALID_IP)):
		return errors.Join(ErrInvalidAddress, err)
	case hcn.IsNotImplemented(err):
		return errors.Join(ErrNotSupported, err)
	}
	return err
}

// call makes a call of HNS, unless ctx has ended.
func call[T any](ctx context.Context, f func() (T, error)) (result T, err error) {
	if err := ctx.Err(); err != nil {
		return result, err
	}
	result, err = f()
	return result, classify(err)
}

// Features implements [Interface].
func (HNS) Features(ctx context.Context) (Features, error) {
	f, err := call(ctx, hcn.GetCachedSupportedFeatures)
	if err != nil {
		return Features{}, fmt.Errorf("version of HNS: %w", err)
	}
	return Features{V2: f.Api.V2, RemoteSubnet: f.RemoteSubnet, DSR: f.DSR, SessionAffinity: f.SessionAffinity,
		IPv6DualStack: f.IPv6DualStack, ModifyLoadBalancer: f.ModifyLoadbalancer}, nil
}

// Network implements [Interface].
func (HNS) Network(ctx context.Context, name string) (Network, error) {
	n, err := call(ctx, func() (*hcn.HostComputeNetwork, error) { return hcn.GetNetworkByName(name) })
	if err != nil {
		return Network{}, err
	}
	network := Network{ID: strings.ToLower(n.Id), Name: n.Name, Type: string(n.Type)}
	for _, p := range n.Policies {
		if p.Type != hcn.RemoteSubnetRoute {
			continue
		}
		subnet, err := toRemoteSubnet(p.Settings)
		if err != nil {
			network.Malformed = append(network.Malformed, err.Error())
			continue
		}
		network.RemoteSubnets = append(network.RemoteSubnets, subnet)
	}
	return network, nil
}

func toRemoteSubnet(settings []byte) (subnet RemoteSubnet, err error) {
	var s hcn.RemoteSubnetRoutePolicySetting
	if err := json.Unmarshal(settings, &s); err != nil {
		return RemoteSubnet{}, err
	}
	if subnet.Prefix, err = netip.ParsePrefix(s.DestinationPrefix); err != nil {
		return RemoteSubnet{}, err
	}
	subnet.Provider, err = netip.ParseAddr(s.ProviderAddress)
	return subnet, err
}

// Endpoints implements [Interface].
func (HNS) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	all, err := call(ctx, func() ([]hcn.HostComputeEndpoint, error) { return hcn.ListEndpointsOfNetwork(network) })
	if err != nil {
		return nil, err
	}
	var list []Endpoint
	for i := range all {
		if strings.EqualFold(all[i].HostComputeNetwork, network) { // old versions do not filter
			list = append(list, fromEndpoint(&all[i]))
		}
	}
	return list, nil
}

func fromEndpoint(e *hcn.HostComputeEndpoint) Endpoint {
	endpoint := Endpoint{ID: strings.ToLower(e.Id), Name: e.Name, MAC: strings.ToLower(e.MacAddress),
		Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0}
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			endpoint.IPs = append(endpoint.IPs, a)
		}
	}
	for _, p := range e.Policies {
		var s hcn.ProviderAddressEndpointPolicySetting
		if p.Type == hcn.NetworkProviderAddress && json.Unmarshal(p.Settings, &s) == nil {
			endpoint.Provider, _ = netip.ParseAddr(s.ProviderAddress) // the zero Addr if it is none
		}
	}
	return endpoint
}

// EndpointByName implements [Interface].
func (HNS) EndpointByName(ctx context.Context, name string) (Endpoint, error) {
	e, err := call(ctx, func() (*hcn.HostComputeEndpoint, error) { return hcn.GetEndpointByName(name) })
	if err != nil {
		return Endpoint{}, err
	}
	return fromEndpoint(e), nil
}

// CreateEndpoint implements [Interface].
func (HNS) CreateEndpoint(ctx context.Context, network string, e Endpoint) (Endpoint, error) {
	settings := hcn.HostComputeEndpoint{Name: e.Name, HostComputeNetwork: network, MacAddress: e.MAC,
		SchemaVersion: hcn.SchemaVersion{Major: 2}}
	if e.Remote {
		settings.Flags = hcn.EndpointFlagsRemoteEndpoint
	}
	for _, a := range e.IPs {
		settings.IpConfigurations = append(settings.IpConfigurations, hcn.IpConfig{IpAddress: a.String()})
	}
	if e.Provider.IsValid() {
		policy, err := json.Marshal(hcn.ProviderAddressEndpointPolicySetting{ProviderAddress: e.Provider.String()})
		if err != nil {
			return Endpoint{}, err
		}
		settings.Policies = []hcn.EndpointPolicy{{Type: hcn.NetworkProviderAddress, Settings: policy}}
	}
	created, err := call(ctx, settings.Create)
	if err != nil {
		return Endpoint{}, err
	}
	return fromEndpoint(created), nil
}

// DeleteEndpoint implements [Interface].
func (HNS) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := call(ctx, func() (any, error) { return nil, (&hcn.HostComputeEndpoint{Id: id}).Delete() })
	return err
}

// LoadBalancers implements [Interface].
func (HNS) LoadBalancers(ctx context.Context) ([]LoadBalancer, error) {
	all, err := call(ctx, hcn.ListLoadBalancers)
	if err != nil {
		if errors.Is(err, ErrNotRunning) || errors.Is(err, ctx.Err()) {
			return nil, fmt.Errorf("list load balancers: %w", err)
		}
		// A load balancer that is deleted during the listing makes it fail. That says nothing about any of them.
		return nil, fmt.Errorf("list load balancers: %v", err) //nolint:errorlint // its ErrNotFound is not the list's
	}
	list := make([]LoadBalancer, 0, len(all))
	for i := range all {
		list = append(list, fromLoadBalancer(&all[i]))
	}
	return list, nil
}

func fromLoadBalancer(lb *hcn.HostComputeLoadBalancer) LoadBalancer {
	b := LoadBalancer{ID: strings.ToLower(lb.Id), Flags: Flags(lb.Flags),
		Foreign: len(lb.PortMappings) != 1 || len(lb.FrontendVIPs) > 1}
	b.SourceVIP, _ = netip.ParseAddr(lb.SourceVIP) // "" is none
	for _, id := range lb.HostComputeEndpoints {
		b.Endpoints = append(b.Endpoints, strings.ToLower(id))
	}
	b.Key.Family = model.IPv4
	if lb.Flags&hcn.LoadBalancerFlagsIPv6 != 0 {
		b.Key.Family = model.IPv6
	}
	if len(lb.FrontendVIPs) > 0 && lb.FrontendVIPs[0] != "" {
		addr, err := netip.ParseAddr(lb.FrontendVIPs[0])
		b.Key.Addr, b.Foreign = addr, b.Foreign || err != nil
	}
	if len(lb.PortMappings) > 0 {
		m := lb.PortMappings[0]
		b.Key.Port, b.Key.Protocol = m.ExternalPort, model.Protocol(m.Protocol)
		b.TargetPort, b.Distribution, b.PortFlags = m.InternalPort, Distribution(m.DistributionType), PortFlags(m.Flags)
	}
	return b
}

func toLoadBalancer(lb LoadBalancer) *hcn.HostComputeLoadBalancer {
	settings := &hcn.HostComputeLoadBalancer{
		HostComputeEndpoints: lb.Endpoints,
		PortMappings: []hcn.LoadBalancerPortMapping{{
			Protocol: uint32(lb.Key.Protocol), InternalPort: lb.TargetPort, ExternalPort: lb.Key.Port,
			DistributionType: hcn.LoadBalancerDistribution(lb.Distribution),
			Flags:            hcn.LoadBalancerPortMappingFlags(lb.PortFlags),
		}},
		SchemaVersion: hcn.SchemaVersion{Major: 2},
		Flags:         hcn.LoadBalancerFlags(lb.Flags),
	}
	if lb.Key.Addr.IsValid() {
		settings.FrontendVIPs = []string{lb.Key.Addr.String()}
	}
	if lb.SourceVIP.IsValid() {
		settings.SourceVIP = lb.SourceVIP.String()
	}
	return settings
}

// CreateLoadBalancer implements [Interface].
func (HNS) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	created, err := call(ctx, toLoadBalancer(lb).Create)
	if err != nil {
		return LoadBalancer{}, err
	}
	return fromLoadBalancer(created), nil
}

// UpdateLoadBalancer implements [Interface].
func (HNS) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	_, err := call(ctx, func() (any, error) { return toLoadBalancer(lb).Update(lb.ID) })
	return err
}

// DeleteLoadBalancer implements [Interface].
func (HNS) DeleteLoadBalancer(ctx context.Context, id string) error {
	_, err := call(ctx, func() (any, error) { return nil, (&hcn.HostComputeLoadBalancer{Id: id}).Delete() })
	return err
}
