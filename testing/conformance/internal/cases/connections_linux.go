package cases

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
)

// connectionCases cover established and new connections while endpoints change.
func connectionCases() []Case {
	stays := external(service{Endpoints: cluster.At(localPod1)})
	leave := external(service{Endpoints: cluster.At(localPod1, remotePod1)})
	quiet := external(service{Name: "quiet", Slot: 1, Endpoints: cluster.At(localPod1, remotePod1)})
	return []Case{
		{Name: "connections that stand survive changes to other endpoints", Rules: "S25",
			run: whileConnected(stays, connectionsSurviveOthers)},
		{Name: "connections that stand stay with an endpoint that takes no new ones", Rules: "S25",
			run: whileConnected(leave, connectionsSurviveTheirEndpoint)},
		{Name: "connections on which nothing is said for long are still there", Rules: "S25",
			run: whileConnected(quiet, idleConnectionsStay)},
		{Name: "no new connection is lost while endpoints come and go", Rules: "S46", run: nothingIsLostInChurn},
	}
}

// whileConnected runs a case with a service and established TCP connections from every place to all of its addresses.
func whileConnected(svc service,
	run func(context.Context, *bed, service, standing) error) func(context.Context, *bed) error {
	return serving(svc, func(ctx context.Context, b *bed, svc service) error {
		open, err := b.stand(b.flows(svc, model.TCP, paths(fromAll, everywhere)))
		if err != nil {
			return err
		}
		defer open.close()
		return run(ctx, b, svc, open)
	})
}

func connectionsSurviveOthers(ctx context.Context, b *bed, base service, open standing) error {
	stays := base.Endpoints
	other := external(service{Name: "other", Slot: 2, Endpoints: cluster.At(remotePod2)})
	for _, change := range []struct {
		what     string
		services []service
	}{
		{"endpoints came", []service{external(service{Endpoints: append(cluster.At(remotePod1, remotePod2), stays...)})}},
		{"one of them went", []service{external(service{Endpoints: append(cluster.At(remotePod1), stays...)})}},
		{"another service came", []service{base, other}},
		{"it went", []service{base}},
		{"affinity was switched on", []service{external(service{Endpoints: stays, Affinity: time.Hour})}},
		{"external traffic policy Local was set",
			[]service{external(service{Endpoints: append(cluster.At(remotePod1), stays...), ExternalLocal: true})}},
	} {
		if change.services[0].Affinity > 0 && b.Factory.LacksFeature(backend.SessionAffinity) {
			continue
		}
		if err := b.Put(ctx, change.services...); err != nil {
			return err
		}
		if err := open.check(b.Timeouts); err != nil {
			return fmt.Errorf("after %s:\n\n%w", change.what, err)
		}
	}
	return nil
}

func connectionsSurviveTheirEndpoint(ctx context.Context, b *bed, _ service, open standing) error {
	for _, change := range []struct {
		what      string
		endpoints []endpoint
		new       want
	}{
		{"both endpoints began to terminate, and another one came",
			append(cluster.At(remotePod2), cluster.InPhase(cluster.Terminating, localPod1, remotePod1)...), keeping(remotePod2)},
		{"both had gone", cluster.At(remotePod2), keeping(remotePod2)},
		{"there was none any more", nil, refused},
		// So it is for some seconds in the live migration of a virtual machine that keeps its address.
		{"both were there, and not ready", cluster.InPhase(cluster.Unready, localPod1, remotePod1), refused},
		{"both were ready again", cluster.At(localPod1, remotePod1), keeping(localPod1, remotePod1)},
	} {
		svc := external(service{Endpoints: change.endpoints})
		err := b.step(ctx, step{services: one(svc),
			traffic: []traffic{{from: fromPod, to: toCluster, want: change.new}}})
		if err != nil {
			return fmt.Errorf("after %s, new connections:\n\n%w", change.what, err)
		}
		if err := open.check(b.Timeouts); err != nil {
			return fmt.Errorf("after %s:\n\n%w", change.what, err)
		}
	}
	return nil
}

func nothingIsLostInChurn(ctx context.Context, b *bed) error {
	tcp := []servicePort{{Protocol: model.TCP}}
	web := func(pods ...string) service {
		return external(service{Slot: 1, Ports: tcp, Endpoints: cluster.At(pods...)})
	}
	other := external(service{Name: "other", Slot: 2, Endpoints: cluster.At(remotePod2)})
	waves := [][]service{
		{web(localPod1, remotePod1)},
		{web(localPod1, remotePod1, remotePod2)},
		{web(remotePod2)},
		{web(localPod1), other},
		{web(remotePod1, localPod2), other},
		{web(localPod1, localPod2, remotePod1, remotePod2)},
		{web(localPod2)},
	}
	if err := b.Put(ctx, waves[0]...); err != nil {
		return err
	}
	st := b.startStream(waves[0][0], localPod1, localPod2, remotePod1, remotePod2)
	return st.during(func() error {
		for range 4 {
			for _, w := range waves {
				if err := b.Put(ctx, w...); err != nil {
					return err
				}
				if err := st.await(ctx, 3); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// idleFor is how long connections stay idle: longer than the entry of a dataplane with short timeouts might last.
const idleFor = 3 * time.Second

// idleConnectionsStay changes another service while the connections are idle.
func idleConnectionsStay(ctx context.Context, b *bed, quiet service, open standing) error {
	over := time.NewTimer(idleFor)
	defer over.Stop()
	busy := external(service{Name: "busy", Slot: 2})
	for wave := 0; ; wave++ {
		busy.Endpoints = cluster.At([]string{localPod1, localPod2, remotePod1, remotePod2}[:wave%5]...)
		if err := b.Put(ctx, quiet, busy); err != nil {
			return err
		}
		select {
		case <-over.C:
			if err := open.check(b.Timeouts); err != nil {
				return fmt.Errorf("after %v in which nothing was said:\n\n%w", idleFor, err)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idleFor / 20):
		}
	}
}
