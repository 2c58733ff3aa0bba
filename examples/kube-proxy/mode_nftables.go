package main

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
)

func startNFTables(ctx context.Context, c *v1alpha2.KubeProxyConfiguration, m *machine,
	o backendOptions) (backend, error) {
	choice, err := config.NodePortAddresses(c)
	if err != nil {
		return nil, err
	}
	return nft.New(ctx, nft.Options{
		MasqueradeMark:    config.MasqueradeMark(c),
		NodePortAddresses: choice,
		Families:          o.families,
		Dataplane:         m.nftables,
		Metrics:           o.metrics,
		OnProblem:         o.onProblem,
	})
}

func cleanUpNFTables(ctx context.Context, m *machine) error {
	return nft.CleanUp(ctx, nft.Options{Dataplane: m.nftables})
}

// upstreamTable is the name of the tables of Kubernetes' own kube-proxy in mode nftables.
const upstreamTable = "kube-proxy"

func cleanUpUpstreamNFTables(ctx context.Context, m *machine) error {
	return nft.CleanUp(ctx, nft.Options{TableName: upstreamTable, Dataplane: m.nftables})
}
