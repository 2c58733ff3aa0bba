package cases

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
)

// pluginCases cover chains of type nat that another program has, such as a network plugin: who translates a connection
// to a service does not depend on whose chains were registered last (S67). The kernel runs the younger of two chains of
// one priority first.
func pluginCases() []Case {
	const number = 8123 // the other program's rules translate it at any address: nothing else uses it
	svc := external(service{Endpoints: cluster.At(localPod1, remotePod1),
		Ports: []servicePort{{Protocol: model.TCP, Number: number}, {Protocol: model.UDP, Number: number}}})
	return []Case{
		{Name: pluginTableCase, Rules: "S67",
			run: serving(svc, pluginTableTakesNothing)},
		{Name: pluginRulesCase, Rules: "S67",
			iptables: true, run: serving(svc, pluginRulesTakeNothing)},
	}
}

// pluginPorts translate whatever is for the ports of a service, at any address.
func pluginPorts(svc service) *hostPorts {
	full := svc.WithDefaults(0)
	return &hostPorts{to: localPod2, anyAddress: true,
		ports: []uint16{full.Ports[0].Number, full.NodePortOf(0), full.NodePortOf(1)}}
}

func pluginTableTakesNothing(ctx context.Context, b *bed, svc service) error {
	plugin := pluginPorts(svc)
	plugin.table = true
	return b.takesNothing(ctx, svc, plugin, everywhere)
}

func pluginRulesTakeNothing(ctx context.Context, b *bed, svc service) error {
	plugin := pluginPorts(svc)
	err := b.Network.Node.Do(func() error {
		variant, err := iptablesInUse(ctx, b.Env.Families)
		plugin.variants = []string{variant}
		return err
	})
	if err != nil {
		return err
	}
	return b.takesNothing(ctx, svc, plugin, everywhere)
}
